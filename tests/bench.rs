//! `smolrun bench` from outside, on the model in the repository.

use serde_json::Value;
use smol_tests::common::{self, TALES, run};

fn blob() -> String {
    common::blob(TALES).into_os_string().into_string().expect("the target directory's path is text")
}

#[test]
fn json_has_the_fields_it_promises() {
    let blob = blob();
    for kv in ["f32", "f16"] {
        let args = [
            "bench",
            &blob,
            "-p",
            "40",
            "-n",
            "8",
            "-d",
            "3",
            "-r",
            "3",
            "--threads",
            "2",
            "--kv",
            kv,
            "--json",
        ];
        let outcome = run("smolrun", &args);
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        for (name, n, fraction) in [("pp", 40, "fraction_of_fma"), ("tg", 8, "fraction_of_bandwidth")] {
            let test = &report[name];
            assert_eq!((&test["n"], &test["depth"]), (&Value::from(n), &Value::from(3)));
            let speed = |which: &str| test["tokens_per_second"][which].as_f64().unwrap();
            assert!(0.0 < speed("min") && speed("min") <= speed("median") && speed("median") <= speed("max"));
            let number = |name: &str| test[name].as_f64().unwrap();
            assert!(number(fraction) > 0.0);
            // More than all that there is can be no measurement, and is not called one, however busy this machine is.
            let is_possible = number(fraction) <= 1.0 && number("peak_difference") <= 0.2;
            assert_eq!(test["is_reliable"], is_possible, "{test}");
        }
        assert_eq!((&report["threads"], &report["kv"]), (&Value::from(2), &Value::from(kv)));
        assert_eq!(report["dtype"], "f32");
        assert!(report["read_gb_s"].as_f64().unwrap() > 0.0 && report["fma_gflop_s"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn sequences_are_measured_together() {
    let args = ["bench", &blob(), "-p", "8", "-n", "4", "-r", "2", "--sequences", "1,5,200", "--json"];
    let outcome = run("smolrun", &args);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let together = report["sequences"].as_array().unwrap();
    assert_eq!(together.iter().map(|test| test["n"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 5, 200]);
    for test in together {
        let speed = |which: &str| test["tokens_per_second"][which].as_f64().unwrap();
        assert!(0.0 < speed("min") && speed("min") <= speed("median") && speed("median") <= speed("max"));
    }
    for (sequences, problem) in
        [("0", "expected a number from 1 to 256"), ("257", "1 to 256"), ("x", "1 to 256")]
    {
        let outcome = run("smolrun", &["bench", &blob(), "--sequences", sequences]);
        assert_eq!(outcome.code, 2);
        assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
    }
}

#[test]
fn what_is_not_asked_for_is_left_out() {
    let outcome = run("smolrun", &["bench", &blob(), "-p", "0", "-n", "4", "-r", "1"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert!(outcome.stdout.contains("\ntg4 ") && outcome.stdout.contains("% of the read bandwidth"));
    assert!(!outcome.stdout.contains("pp"), "{}", outcome.stdout);
}

#[test]
fn more_than_the_context_is_an_error_at_once() {
    let outcome = run("smolrun", &["bench", &blob(), "-d", "1000000"]);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("1000000") && outcome.stderr.contains("context"), "{}", outcome.stderr);
}
