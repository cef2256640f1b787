// SPDX-License-Identifier: GPL-2.0-only
//! Values that are a number or a word, such as `times = 3` and `times = "forever"`.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::dist::Span;
use super::program::{Count, Spin, Times, TASKS_MAX};

const TIMES_MAX: u64 = 1 << 40;

macro_rules! number_or_word {
    ($type:ident, $expected:literal, $number:expr, $word:expr, $write:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct V;
                impl Visitor<'_> for V {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_u64<E: de::Error>(self, n: u64) -> Result<$type, E> {
                        let read: fn(u64) -> Option<$type> = $number;
                        read(n).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(n), &self))
                    }
                    fn visit_i64<E: de::Error>(self, n: i64) -> Result<$type, E> {
                        match u64::try_from(n) {
                            Ok(n) => self.visit_u64(n),
                            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(n), &self)),
                        }
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        let read: fn(&str) -> Option<$type> = $word;
                        read(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
                    }
                }
                deserializer.deserialize_any(V)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let write: fn(&$type) -> Result<u64, String> = $write;
                match write(self) {
                    Ok(number) => serializer.serialize_u64(number),
                    Err(word) => serializer.serialize_str(&word),
                }
            }
        }
    };
}

number_or_word!(
    Count,
    "1 to 65536, or \"vcpus\", \"vcpus-1\", \"vcpus+2\"",
    |n| u32::try_from(n).ok().filter(|n| (1..=TASKS_MAX).contains(&u64::from(*n))).map(Count::Fixed),
    |text| {
        let rest = text.strip_prefix("vcpus")?;
        if rest.is_empty() {
            return Some(Count::PerVcpu(0));
        }
        let more = rest.starts_with(['+', '-']).then(|| rest.parse::<i32>().ok()).flatten()?;
        (-65_536..=65_536).contains(&more).then_some(Count::PerVcpu(more))
    },
    |count| match count {
        Count::Fixed(n) => Ok(u64::from(*n)),
        Count::PerVcpu(0) => Err("vcpus".into()),
        Count::PerVcpu(more) => Err(format!("vcpus{more:+}")),
    }
);

number_or_word!(
    Times,
    "a number from 0 to 2^40, or \"forever\"",
    |n| (n <= TIMES_MAX).then_some(Times::Fixed(n)),
    |text| (text == "forever").then_some(Times::Forever),
    |times| match times {
        Times::Fixed(n) => Ok(*n),
        Times::Forever => Err("forever".into()),
    }
);

number_or_word!(
    Spin,
    "a time such as \"50us\", or \"forever\"",
    |n| (n == 0).then_some(Spin::Not),
    |text| {
        if text == "forever" {
            return Some(Spin::Forever);
        }
        super::dist::parse(text).map(|ns| Spin::For(Span(ns)))
    },
    |spin| match spin {
        Spin::Not => Ok(0),
        Spin::For(span) => Err(span.to_string()),
        Spin::Forever => Err("forever".into()),
    }
);
