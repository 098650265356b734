//! Rounds in which loads take turns, so that a disturbance of the machine affects all of them alike.

use std::{fmt, io};

/// The median of some samples, with the least and the greatest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

/// One load of a round, which returns its measured values.
pub type Turn<'a, T> = Box<dyn Fn() -> io::Result<T> + 'a>;

/// Runs `turns` for `count` rounds and returns their values by turn and round. A first round only warms everything up.
/// Every second round runs backwards, so that no load always follows the same other.
pub fn rounds<T>(count: usize, turns: &[Turn<'_, T>]) -> io::Result<Vec<Vec<T>>> {
    let mut samples: Vec<Vec<T>> = turns.iter().map(|_| Vec::new()).collect();
    for round in 0..=count {
        let mut order: Vec<usize> = (0..turns.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for i in order {
            let sample = turns[i]()?;
            if round > 0 {
                samples[i].push(sample);
            }
        }
        eprint!(".");
    }
    eprintln!();
    Ok(samples)
}

/// Applies `of` to the samples of two turns in the same rounds, such as their ratio.
pub fn paired<T>(ours: &[T], theirs: &[T], of: impl Fn(&T, &T) -> f64) -> Spread {
    Spread::of(ours.iter().zip(theirs).map(|(ours, theirs)| of(ours, theirs)))
}

// === impl Spread ===

impl Spread {
    pub fn of(samples: impl Iterator<Item = f64>) -> Self {
        let mut samples: Vec<f64> = samples.collect();
        samples.sort_by(f64::total_cmp);
        let Some(last) = samples.len().checked_sub(1) else { return Self::one(f64::NAN) };
        let median = (samples[last / 2] + samples[last.div_ceil(2)]) / 2.0;
        Self { median, least: samples[0], most: samples[last] }
    }

    /// Makes a spread of a figure that is measured once.
    pub fn one(value: f64) -> Self {
        Self { median: value, least: value, most: value }
    }
}

/// Writes `1.02 (0.98-1.07)`, with as many decimals as the format asks for.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$}", self.median)?;
        if self.least < self.most {
            write!(f, " ({:.digits$}-{:.digits$})", self.least, self.most)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_two() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0].into_iter());
        assert_eq!(spread, Spread { median: 2.5, least: 1.0, most: 4.0 });
        assert_eq!(Spread::of([7.0].into_iter()), Spread::one(7.0));
        assert_eq!(format!("{spread:.1}"), "2.5 (1.0-4.0)");
    }
}
