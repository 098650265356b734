//! A picture of requests and grants over time, and its drawing as SVG.

use paceway::algorithm::Micros;
use std::fmt::Write;

pub(crate) const SECOND: Micros = 1_000_000;
const LEFT: f64 = 110.0;
const WIDTH: f64 = 590.0;
/// The lower edges of the two rows of requests and of the chart, in pixels.
const REQUESTS: i64 = 160;
const GRANTS: i64 = 205;
const CHART: f64 = 330.0;
const CHART_HEIGHT: f64 = 90.0;
const HEAD: &str = r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 370" width="720" height="370" font-family="sans-serif" font-size="12" fill="#222">
"##;
pub(crate) const BLUE: &str = "#1f6fb4";
pub(crate) const RED: &str = "#c8322b";
pub(crate) const ORANGE: &str = "#b35a00";

/// The requests and grants of one algorithm, and the curve and bound that are drawn with them.
pub(crate) struct Picture {
    pub(crate) name: &'static str,
    pub(crate) settings: &'static str,
    pub(crate) seconds: i64,
    /// The instant of each request, µs from the left edge, and whether it was granted.
    pub(crate) requests: Vec<(Micros, bool)>,
    pub(crate) grants: Vec<Micros>,
    /// A step line: the second number is the value from the instant on.
    pub(crate) curve: Vec<(Micros, f64)>,
    pub(crate) curve_name: &'static str,
    /// A line through these points, which the curve never crosses: the promise of the limiter.
    pub(crate) bound: Vec<(Micros, f64)>,
    pub(crate) bound_name: &'static str,
    /// The instants at which windows of the clock begin, for a `fixed_window` only.
    pub(crate) marks: Vec<Micros>,
}

// === impl Picture ===

impl Picture {
    /// Draws the picture.
    pub(crate) fn svg(&self) -> String {
        let (passed, refused): (Vec<_>, Vec<_>) = self.requests.iter().partition(|(_, ok)| *ok);
        let instants = |of: Vec<(Micros, bool)>| of.into_iter().map(|(at, _)| at).collect();
        let (passed, refused): (Vec<_>, Vec<_>) = (instants(passed), instants(refused));
        let shown = self.curve.iter().filter(|(at, _)| *at <= self.seconds * SECOND);
        let curve = shown.fold(String::new(), |path, (at, value)| {
            let (x, y) = (self.x(*at), self.y(*value));
            if path.is_empty() { format!("M{x} {y}") } else { format!("{path}H{x}V{y}") }
        });
        let bound: Vec<_> = self
            .bound
            .iter()
            .map(|(at, value)| format!("{} {}", self.x(*at), self.y(*value)))
            .collect();
        let (end, chart_top) = (self.x(self.seconds * SECOND), CHART - CHART_HEIGHT);
        let dashed = format!("fill=\"none\" stroke=\"{ORANGE}\" stroke-dasharray=\"5 3\"");
        let solid = format!("fill=\"none\" stroke=\"{BLUE}\" stroke-width=\"1.5\"");
        let [blue, red, orange] = [BLUE, RED, ORANGE].map(|color| format!("fill=\"{color}\""));
        [
            HEAD.to_owned(),
            format!("<title>{}: {}</title>\n", self.name, self.settings),
            "<rect width=\"720\" height=\"370\" fill=\"#fff\"/>\n".to_owned(),
            text(12.0, 24.0, "font-weight=\"bold\"", self.name),
            text(12.0, 44.0, "", self.settings),
            text(12.0, 148.0, "", "requests"),
            text(12.0, 160.0, &red, "(red: refused)"),
            text(12.0, 205.0, "", "sent upstream"),
            self.axis(),
            path(&blue, &self.dots(&passed, REQUESTS, &[])),
            path(&red, &self.dots(&refused, REQUESTS, &passed)),
            path(&blue, &self.dots(&self.grants, GRANTS, &[])),
            path(&dashed, &format!("M{}", bound.join("L"))),
            path(&solid, &format!("{curve}H{end}")),
            text(LEFT, chart_top - 8.0, &blue, self.curve_name),
            text(LEFT + 250.0, chart_top - 8.0, &orange, self.bound_name),
            "</svg>\n".to_owned(),
        ]
        .concat()
    }

    /// Draws the seconds below the chart, the values beside it, and the lines at which windows begin.
    fn axis(&self) -> String {
        let mut lines = String::new();
        let mut out = String::new();
        for second in 0..=self.seconds {
            let x = self.x(second * SECOND);
            let _ = write!(lines, "M{x} {REQUESTS}v4M{x} {GRANTS}v4M{x} {CHART}v4");
            let _ =
                writeln!(out, "<text x=\"{x}\" y=\"348\" text-anchor=\"middle\">{second} s</text>");
        }
        let top = self.greatest();
        let step = [1, 5, 10, 20].into_iter().find(|step| top / f64::from(*step) <= 6.0);
        for value in (0..=top as i64).step_by(step.unwrap_or(50) as usize) {
            let y = self.y(value as f64);
            let _ = write!(lines, "M{LEFT} {y}h-4");
            let _ = writeln!(
                out,
                "<text x=\"102\" y=\"{}\" text-anchor=\"end\">{value}</text>",
                y + 4.0
            );
        }
        let [requests, grants, chart] = [REQUESTS as f64, GRANTS as f64, CHART];
        for y in [requests, grants, chart] {
            let _ = write!(lines, "M{LEFT} {y}h{WIDTH}");
        }
        let _ = write!(lines, "M{LEFT} {CHART}v-{CHART_HEIGHT}");
        let marks = self.marks.iter().map(|at| format!("M{} 54V{CHART}", self.x(*at)));
        let marks: String = marks.collect();
        out.push_str(&path("stroke=\"#888\"", &lines));
        if !marks.is_empty() {
            out.push_str(&path("stroke=\"#bbb\" stroke-dasharray=\"2 3\"", &marks));
        }
        out
    }

    /// Draws a square for each instant, on top of those of the same instant and of those of `below`.
    fn dots(&self, instants: &[Micros], edge: i64, below: &[Micros]) -> String {
        let under = |i: usize, at| {
            let same = |others: &[Micros]| others.iter().filter(|other| **other == at).count();
            same(below) + same(&instants[..i])
        };
        let dots = instants.iter().enumerate().map(|(i, at)| {
            let y = edge - 5 - 5 * under(i, *at) as i64;
            format!("M{:.1} {y}h4v4h-4z", self.x(*at) - 2.0)
        });
        dots.collect()
    }

    fn greatest(&self) -> f64 {
        let values = self.curve.iter().chain(&self.bound).map(|(_, value)| *value);
        values.fold(1.0, f64::max) * 1.1
    }

    fn x(&self, at: Micros) -> f64 {
        tenth(LEFT + WIDTH * at as f64 / (self.seconds * SECOND) as f64)
    }

    fn y(&self, value: f64) -> f64 {
        tenth(CHART - CHART_HEIGHT * value / self.greatest())
    }
}

pub(crate) fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

pub(crate) fn path(style: &str, d: &str) -> String {
    format!("<path {style} d=\"{d}\"/>\n")
}

pub(crate) fn text(x: f64, y: f64, style: &str, words: &str) -> String {
    format!("<text x=\"{x}\" y=\"{y}\" {style}>{words}</text>\n")
}
