//! The limits of the tests themselves: what hangs is a failure that names it.
#![cfg(unix)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use smol_tests::common::{Running, within};

/// Longer than anything here may take.
const FOREVER: &str = "600";

fn shell(script: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

/// What `work` panics with, which it does soon.
fn complaint<T>(work: impl FnOnce() -> T) -> String {
    let start = Instant::now();
    let panic = catch_unwind(AssertUnwindSafe(work)).err().expect("it panics");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    panic.downcast_ref::<String>().expect("it says why").clone()
}

#[test]
fn a_program_that_hangs_is_killed_by_name() {
    let limit = Duration::from_secs(1);
    let start = || Running::start_for(limit, &mut shell(&format!("echo begun; exec sleep {FOREVER}")));
    for complaint in [complaint(|| start().wait_with_output()), complaint(|| start().wait())] {
        assert!(
            complaint.contains("sleep 600") && complaint.contains("did not end within 1s"),
            "{complaint}"
        );
    }
    assert!(complaint(|| start().wait_with_output()).contains("begun"));
    // Also one whose output is read by the test itself.
    let mut hanging = start();
    let text = std::io::read_to_string(hanging.stdout.take().unwrap()).unwrap();
    assert_eq!(text, "begun\n");
    assert!(complaint(|| hanging.wait()).contains("was killed"));
}

#[test]
fn a_program_that_is_left_alone_ends() {
    let running = Running::start(&mut shell(&format!("exec sleep {FOREVER}")));
    let id = running.id().to_string();
    let is_there = || Command::new("kill").args(["-0", &id]).output().unwrap().status.success();
    assert!(is_there());
    drop(running);
    assert!(!is_there());
}

#[test]
fn a_program_that_ends_says_how() {
    let mut running = Running::start(&mut shell("cat; echo problem >&2; exit 3"));
    std::io::Write::write_all(running.stdin.as_mut().unwrap(), b"text").unwrap();
    let output = running.wait_with_output();
    assert_eq!(
        (output.status.code(), &output.stdout[..], &output.stderr[..]),
        (Some(3), &b"text"[..], &b"problem\n"[..])
    );
}

#[test]
fn work_that_panics_does_not_hang_the_test() {
    assert_eq!(within("adding", || 1 + 1), 2);
    assert!(complaint(|| within("counting", || panic!("no"))).contains("counting: it panicked"));
}
