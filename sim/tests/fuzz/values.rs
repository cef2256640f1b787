// SPDX-License-Identifier: GPL-2.0-only
//! Scenarios with every field written out, and any of them with a strange value.

use cohort_sim::scenario::Scenario;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{json, Value};

use crate::scenarios::scenario;
use crate::{attempt, cases};

fn strange() -> Vec<Value> {
    let numbers =
        [0, 1, 2, 7, 64, 1_000, 65_535, 65_536, 1 << 17, 1 << 20, u64::from(u32::MAX), 1 << 32, 1 << 40];
    let mut values: Vec<Value> = numbers.into_iter().map(Value::from).collect();
    values.extend([json!(i64::MAX), json!(u64::MAX), json!(-1), json!(i64::MIN), json!(0.5), json!(1e308)]);
    values.extend([
        json!(""),
        json!("x"),
        json!("forever"),
        json!("5us"),
        json!("86400s"),
        json!(true),
        json!(null),
    ]);
    values.extend([json!([]), json!({}), json!([0]), json!([7, 7, 7])]);
    values
}

/// Where everything is in a value, as JSON pointers; the whole itself is left out.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut go = |name: String, inner: &Value| {
        let place = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
        found.push(place.clone());
        places(inner, &place, found);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(name, inner)| go(name.clone(), inner)),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, inner)| go(i.to_string(), inner)),
        _ => {}
    }
}

/// A place among those that there are, and a value for it.
pub type Change = (Index, Index);

pub fn changes() -> impl Strategy<Value = Vec<Change>> {
    proptest::collection::vec((any::<Index>(), any::<Index>()), 1..5)
}

pub fn change(value: &mut Value, changes: &[Change]) {
    for (place, new) in changes {
        let mut found = Vec::new();
        places(value, "", &mut found);
        if found.is_empty() {
            return;
        }
        let place: &String = place.get(&found);
        if let Some(there) = value.pointer_mut(place) {
            *there = new.get(&strange()).clone();
        }
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn strange_values_anywhere(text in scenario(), changes in changes()) {
        let Ok(scenario) = serde_json::from_str::<Scenario>(&text) else { return Ok(()) };
        let mut value = serde_json::to_value(scenario).unwrap();
        change(&mut value, &changes);
        attempt(value.to_string().as_bytes());
    }
}
