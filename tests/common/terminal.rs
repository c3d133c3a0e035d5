//! A terminal with a program in it, by tmux.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::{Running, TempDir};

/// Longest wait for the screen to show something: a slow machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(120);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// A terminal of 120 columns and 60 lines, in which one command runs. Dropped, it is closed.
pub struct Terminal {
    temp: TempDir,
}

impl Terminal {
    /// Runs `program` with `arguments` and these environment variables; when it has ended, the screen says `exit code N`.
    ///
    /// # Panics
    /// If there is no tmux: apt-get install tmux.
    pub fn run(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Terminal {
        let terminal = Terminal { temp: TempDir::new() };
        // An interrupt is for the program; the shell around it stays to tell how it ended.
        let script = "trap : INT; \"$@\"; echo \"exit code $?\"; exec cat";
        let mut tmux = terminal.tmux();
        tmux.args(["-f", "/dev/null", "-u", "new-session", "-d", "-x", "120", "-y", "60", "env"]);
        // What the user of this machine has set is not to change what the screen shows.
        tmux.args(["LC_ALL=C.UTF-8", "INPUTRC=/dev/null"]);
        tmux.args(environment.iter().map(|(name, value)| format!("{name}={value}")));
        tmux.args(["sh", "-c", script, "sh"]).arg(program).args(arguments);
        run(&mut tmux);
        terminal
    }

    /// Types `text`, and nothing after it.
    pub fn type_text(&self, text: &str) {
        run(self.tmux().args(["send-keys", "-l", "--", text]));
    }

    /// Types these bytes, which need be no text.
    pub fn type_bytes(&self, bytes: &[u8]) {
        run(self.tmux().args(["send-keys", "-H"]).args(bytes.iter().map(|byte| format!("{byte:02x}"))));
    }

    /// Closes it, as when somebody closes its window: what runs in it gets SIGHUP.
    pub fn close(self) {}

    /// Presses a key by tmux's name for it, such as `Enter`, `Up` or `C-c`.
    pub fn press(&self, key: &str) {
        run(self.tmux().args(["send-keys", key]));
    }

    /// What is on the screen: lines without the blanks at their ends, those that were wrapped joined.
    pub fn screen(&self) -> String {
        let output = run(self.tmux().args(["capture-pane", "-p", "-J"]));
        let text = String::from_utf8(output.stdout).expect("the screen is UTF-8");
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines.join("\n").trim_end().to_owned()
    }

    /// Waits until `is_there` is true of the screen, and returns it.
    ///
    /// # Panics
    /// If that takes too long; `what` says what was waited for.
    pub fn wait_for(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if is_there(&screen) {
                return screen;
            }
            assert!(start.elapsed() < PATIENCE, "waited in vain for {what}; the screen:\n{screen}");
            sleep(BETWEEN_LOOKS);
        }
    }

    /// Waits until the screen is exactly `expected`.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for_screen(&self, expected: &str) {
        self.wait_for(&format!("this screen:\n{expected}\n"), |screen| screen == expected);
    }

    fn tmux(&self) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.env_remove("TMUX").arg("-S").arg(self.temp.join("socket"));
        tmux
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut tmux = self.tmux();
        // In a thread of its own, where a failure does not come on top of the one that may be under way.
        let _ = thread::spawn(move || output(tmux.arg("kill-server"))).join();
    }
}

fn run(tmux: &mut Command) -> Output {
    let output = output(tmux);
    assert!(output.status.success(), "{tmux:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn output(tmux: &mut Command) -> Output {
    tmux.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start_for(PATIENCE, tmux).wait_with_output()
}
