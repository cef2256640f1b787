// SPDX-License-Identifier: GPL-2.0-only
//! Times in workload files: `"50us"`, or a distribution from which a new one is drawn each time.

use std::fmt;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use crate::rng::Rng;
use crate::time::Ns;

/// The longest time in a workload file: a day.
const SPAN_MAX_NS: Ns = 86_400_000_000_000;

/// A fixed time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span(pub Ns);

const EXPECTED: &str = "a time such as \"50us\": a number and ns, us, ms or s";

pub(super) fn parse(text: &str) -> Option<Ns> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_at);
    let scale: Ns = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let (whole, part) = number.trim().split_once('.').unwrap_or((number.trim(), ""));
    let digits = |text: &str| text.len() <= 15 && text.bytes().all(|c| c.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) {
        return None;
    }
    let mut ns = whole.parse::<Ns>().ok()?.checked_mul(scale)?;
    let mut scale = scale;
    for digit in part.bytes() {
        scale /= 10;
        ns = ns.checked_add(Ns::from(digit - b'0') * scale)?;
    }
    (ns <= SPAN_MAX_NS).then_some(ns)
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
        parse(text).map(Span).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(SpanVisitor)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
        let unit = units.iter().find(|(scale, _)| self.0 >= *scale && self.0 % scale == 0);
        let (scale, name) = unit.copied().unwrap_or((1, "ns"));
        write!(f, "{}{name}", self.0 / scale)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A time to be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dist {
    Fixed(Span),
    /// Exponential, by its mean.
    Exp(Span),
    /// Evenly between these.
    Uniform(Span, Span),
    LogNormal {
        median: Span,
        sigma: f64,
    },
}

impl Dist {
    pub const fn fixed(ns: Ns) -> Self {
        Self::Fixed(Span(ns))
    }

    /// A fixed time draws no number.
    pub fn draw(&self, rng: &mut Rng) -> Ns {
        match *self {
            Self::Fixed(span) => span.0,
            Self::Exp(mean) => rng.exponential(mean.0).min(SPAN_MAX_NS),
            Self::Uniform(low, high) => rng.between(low.0, high.0),
            Self::LogNormal { median, sigma } => rng.log_normal(median.0, sigma).min(SPAN_MAX_NS),
        }
    }
}

impl Default for Dist {
    fn default() -> Self {
        Self::fixed(0)
    }
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct LogNormal {
    median: Span,
    sigma: f64,
}

struct DistVisitor;

impl<'de> Visitor<'de> for DistVisitor {
    type Value = Dist;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Dist, E> {
        SpanVisitor.visit_str(text).map(Dist::Fixed)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Dist, A::Error> {
        const KINDS: &[&str] = &["exp", "uniform", "log-normal"];
        let Some(kind) = map.next_key::<String>()? else {
            return Err(de::Error::custom(format!("is empty, expected one of {}", KINDS.join(", "))));
        };
        let dist = match kind.as_str() {
            "exp" => Dist::Exp(map.next_value()?),
            "uniform" => {
                let (low, high): (Span, Span) = map.next_value()?;
                if low.0 > high.0 {
                    return Err(de::Error::custom("uniform: the first time is above the second"));
                }
                Dist::Uniform(low, high)
            }
            "log-normal" => {
                let LogNormal { median, sigma } = map.next_value()?;
                if !(0.0..=5.0).contains(&sigma) {
                    return Err(de::Error::custom(format!("sigma: {sigma} is not allowed, expected 0 to 5")));
                }
                Dist::LogNormal { median, sigma }
            }
            other => return Err(de::Error::unknown_variant(other, KINDS)),
        };
        match map.next_key::<String>()? {
            None => Ok(dist),
            Some(_) => Err(de::Error::custom(format!("expected exactly one of {}", KINDS.join(", ")))),
        }
    }
}

impl<'de> Deserialize<'de> for Dist {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DistVisitor)
    }
}

impl Serialize for Dist {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Self::Fixed(span) = self {
            return span.serialize(serializer);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        match *self {
            Self::Fixed(_) => {}
            Self::Exp(mean) => map.serialize_entry("exp", &mean)?,
            Self::Uniform(low, high) => map.serialize_entry("uniform", &(low, high))?,
            Self::LogNormal { median, sigma } => {
                map.serialize_entry("log-normal", &LogNormal { median, sigma })?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    #[test]
    fn times_are_exact() {
        assert_eq!(parse("50us"), Some(50_000));
        assert_eq!(parse("1.5 ms"), Some(1_500_000));
        assert_eq!(parse("0.000000001s"), Some(1));
        assert_eq!(parse("1.9ns"), Some(1), "rounded down");
        for wrong in ["", "us", "-1us", "1e3us", "1 year", "99999999s", "1..2s", ".5s"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(Span(1_500_000).to_string(), "1500us");
        assert_eq!(Span(0).to_string(), "0ns");
    }

    #[test]
    fn the_means_are_what_they_should_be() {
        let mean = |dist: Dist| {
            let mut rng = Rng::derive(7, Stream::Workload, 1);
            (0..100_000).map(|_| dist.draw(&mut rng) as f64).sum::<f64>() / 100_000.0
        };
        // Standard errors: 10000 / sqrt(100000) = 32; 5774 / 316 = 18.
        assert!((mean(Dist::Exp(Span(10_000))) - 10_000.0).abs() < 130.0);
        assert!((mean(Dist::Uniform(Span(0), Span(20_000))) - 10_000.0).abs() < 75.0);
        let expected = 10_000.0 * libm::exp(0.125);
        assert!((mean(Dist::LogNormal { median: Span(10_000), sigma: 0.5 }) - expected).abs() < 80.0);
    }
}
