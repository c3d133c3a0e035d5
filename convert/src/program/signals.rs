//! What a signal does to the `smolconv` program: it removes the unfinished file and ends.

use std::process::exit;

use crate::write::temp_file;

/// What a shell adds to the number of the signal that ended a program.
const SIGNALED: i32 = 128;

/// Ends the program in an orderly way on Ctrl-C and SIGTERM from now on. Where that cannot be arranged they still end it; they
/// only leave an unfinished file. A file that grows beyond a limit (`ulimit -f`) is an error of whoever writes it.
pub(crate) fn watch() {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
        use signal_hook::iterator::Signals;

        if let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGXFSZ]) {
            let work = move || signals.forever().filter(|&signal| signal != SIGXFSZ).for_each(end);
            let _ = std::thread::Builder::new().name("signals".into()).spawn(work);
        }
    }
    #[cfg(not(unix))]
    let _ = ctrlc::set_handler(|| end(2));
}

fn end(signal: i32) {
    let _keep = temp_file::remove_all();
    exit(SIGNALED + signal);
}
