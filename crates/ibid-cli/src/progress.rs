//! Progress of long work on stderr, if that is a terminal: never in a pipe, and never together with JSON.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Returns a bar up to `len`, or a counter if the total is unknown.
pub(crate) fn bar(len: Option<u64>, is_json: bool) -> ProgressBar {
    if is_json || !is_seen() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match len {
        Some(len) => (ProgressBar::new(len), BAR),
        None => (ProgressBar::new_spinner(), COUNT),
    };
    // The templates are constants, and a test checks that they parse.
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(TICK);
    bar
}

/// Returns whether stderr is a terminal, so that it is worth computing the total for a progress bar.
pub(crate) fn is_seen() -> bool {
    std::io::stderr().is_terminal()
}

const BAR: &str = "{elapsed_precise} {bar:40} {human_pos}/{human_len} {per_sec} {eta}";

const COUNT: &str = "{elapsed_precise} {spinner} {msg} {human_pos} {per_sec}";

/// Redraw interval of the bar: often enough to see it move.
const TICK: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_can_be_read() {
        for template in [BAR, COUNT] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
