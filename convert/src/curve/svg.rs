//! A curve as a drawing.

use std::fmt::Write;

use super::{Curve, Point};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#334155}.title{font-weight:600;font-size:13px}\
                     .grid{stroke:#e2e8f0}.size{fill:#2563eb}.fixed{fill:#d97706}\
                     polyline{fill:none;stroke:#2563eb;stroke-width:1.5}";
/// The least divergence that is drawn, so that none has no logarithm.
const LEAST: f64 = 1e-5;

/// Where numbers lie on the drawing.
struct Scale {
    megabytes: [f64; 2],
    /// Powers of ten.
    losses: [f64; 2],
}

impl Scale {
    fn new(points: &[&Point]) -> Scale {
        let range = |numbers: &mut dyn Iterator<Item = f64>| {
            numbers.fold([f64::MAX, f64::MIN], |[low, high], number| [low.min(number), high.max(number)])
        };
        let [low, high] = range(&mut points.iter().map(|point| megabytes(point)));
        let margin = ((high - low) * 0.05).max(1.0);
        let [least, most] = range(&mut points.iter().map(|point| loss(point).log10()));
        let losses = [least.floor(), most.ceil().max(least.floor() + 1.0)];
        Scale { megabytes: [low - margin, high + margin], losses }
    }

    fn across(&self, megabytes: f64) -> f64 {
        let [low, high] = self.megabytes;
        LEFT + (megabytes - low) / (high - low) * (WIDTH - LEFT - RIGHT)
    }

    fn down(&self, loss: f64) -> f64 {
        let [low, high] = self.losses;
        HEIGHT - BOTTOM - (loss.log10() - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
    }
}

fn megabytes(point: &Point) -> f64 {
    point.bytes as f64 / 1e6
}

fn loss(point: &Point) -> f64 {
    if point.report.mean_kl > LEAST { point.report.mean_kl } else { LEAST }
}

/// SVG: mean divergence over size, a dot for each point.
pub(super) fn draw(curve: &Curve) -> String {
    let points = curve.by_size();
    let scale = Scale::new(&points);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\">\n\
         <style>{STYLE}</style>\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"22\">Size and loss of {}</text>\n",
        escape(&curve.source)
    );
    grid(&scale, &mut svg);
    let sizes = points.iter().filter(|point| !point.is_fixed);
    let line: Vec<String> = sizes
        .map(|point| format!("{:.1},{:.1}", scale.across(megabytes(point)), scale.down(loss(point))))
        .collect();
    let _ = writeln!(svg, "<polyline points=\"{}\"/>", line.join(" "));
    points.iter().for_each(|point| mark(point, &scale, &mut svg));
    svg + "</svg>\n"
}

fn grid(scale: &Scale, svg: &mut String) {
    let [low, high] = scale.losses;
    for power in low as i32..=high as i32 {
        let (loss, y) = (10f64.powi(power), scale.down(10f64.powi(power)));
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{loss}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0
        );
    }
    let [low, high] = scale.megabytes;
    for step in 0..=5 {
        let megabytes = low + (high - low) * f64::from(step) / 5.0;
        let x = scale.across(megabytes);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{megabytes:.1} MB</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 18.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\">Mean KL divergence from the checkpoint; the lower left is best.</text>",
        HEIGHT - 12.0
    );
}

fn mark(point: &Point, scale: &Scale, svg: &mut String) {
    let (x, y) = (scale.across(megabytes(point)), scale.down(loss(point)));
    let class = if point.is_fixed { "fixed" } else { "size" };
    let _ = writeln!(svg, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>");
    if point.is_fixed {
        let _ =
            writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", x + 8.0, y - 6.0, escape(&point.name));
    }
}

/// For text of XML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}
