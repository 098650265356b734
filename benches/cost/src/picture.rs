//! `docs/performance.svg`: the costs as bars, readable on a light and on a dark page.

use crate::report::Bar;
use std::fmt::Write;

const WIDTH: f64 = 720.0;
/// The left end of all bars, and the length of the longest, in pixels.
const LEFT: f64 = 190.0;
const LONGEST: f64 = 440.0;
const LINE: f64 = 24.0;
const TITLE: f64 = 44.0;

const STYLE: &str = "\
.page{fill:#fff}text{fill:#222}.ours{fill:#1f6fb4}.theirs{fill:#9aa0a6}.one{stroke:#666}\
.value{paint-order:stroke;stroke:#fff;stroke-width:4}\
@media(prefers-color-scheme:dark){.page{fill:#0d1117}text{fill:#e6edf3}.ours{fill:#58a6ff}\
.theirs{fill:#6e7681}.one{stroke:#9aa0a6}.value{stroke:#0d1117}}";

/// Draws the bars of each group below each other, in the order of `bars`.
pub fn draw(bars: &[Bar]) -> String {
    let groups: Vec<&[Bar]> = bars.chunk_by(|one, next| one.group == next.group).collect();
    let height = groups.iter().map(|group| TITLE + LINE * group.len() as f64).sum::<f64>() + 16.0;
    let mut shapes = String::new();
    let mut top = 0.0;
    for group in groups {
        // Writing to a string cannot fail.
        let _ = draw_group(&mut shapes, group, top);
        top += TITLE + LINE * group.len() as f64;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <title>What a request costs</title>\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>\n{shapes}</svg>\n"
    )
}

fn draw_group(out: &mut String, bars: &[Bar], top: f64) -> std::fmt::Result {
    let most = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let group = bars.first().map_or("", |bar| bar.group);
    writeln!(out, "<text x=\"12\" y=\"{}\" font-weight=\"bold\">{group}</text>", top + 30.0)?;
    let ratio = most < 1000.0;
    let y = |i: usize| top + TITLE + LINE * i as f64;
    let length = |bar: &Bar| bar.value / most * LONGEST;
    for (i, bar) in bars.iter().enumerate() {
        let class = if bar.name.starts_with("paceway") { "ours" } else { "theirs" };
        let name = bar.name.replace('`', "");
        writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>\n\
             <rect class=\"{class}\" x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"17\"/>",
            LEFT - 8.0,
            y(i) + 13.0,
            y(i),
            length(bar)
        )?;
    }
    if ratio {
        let x = LEFT + LONGEST / most;
        let (start, end) = (y(0) - 4.0, y(bars.len()) - 3.0);
        writeln!(
            out,
            "<path class=\"one\" stroke-dasharray=\"3 3\" d=\"M{x:.1} {start}V{end}\"/>"
        )?;
    }
    // After the line, so that none is crossed by it.
    for (i, bar) in bars.iter().enumerate() {
        let value = if ratio { format!("{:.2}", bar.value) } else { thousands(bar.value) };
        let x = LEFT + length(bar) + 6.0;
        writeln!(out, "<text class=\"value\" x=\"{x:.1}\" y=\"{}\">{value}</text>", y(i) + 13.0)?;
    }
    Ok(())
}

/// Writes a number with a comma at its thousands, such as `36,123`.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let first = digits.len() % 3;
    let (first, rest) = digits.split_at(first);
    let groups = rest.as_bytes().chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
    let all: Vec<String> = Some(first.to_owned())
        .filter(|first| !first.is_empty())
        .into_iter()
        .chain(groups)
        .collect();
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_are_grouped() {
        assert_eq!(thousands(999.0), "999");
        assert_eq!(thousands(36_123.4), "36,123");
        assert_eq!(thousands(1_000_000.0), "1,000,000");
    }
}
