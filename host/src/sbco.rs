// SPDX-License-Identifier: GPL-2.0-only
//! alpha of --order sbco: on the command line, and of a scheduler that runs.

use std::str::FromStr;

use libbpf_rs::{MapCore, MapFlags};
use tracing::info;

use crate::bpf::types::rodata;
use crate::checks::Host;
use crate::monitor;
use crate::say::{self, Failure};

/// The scheduler has it in parts of this: SBCO_ALPHA_ONE.
const ONE: u64 = 65_536;

/// Where the scheduler looks for it while it runs, with 0 where no alpha counts. The kernel keeps 15 characters of a map's name.
const MAP: &str = "sbco_alpha_now";

const ALLOWED: &str = "allowed: a number from 0.01 to 1, or such a fraction, as 2/3";

/// From what distance on siblings are brought together, as part of the queue's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alpha(u32);

impl FromStr for Alpha {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (over, under) = text.split_once('/').unwrap_or((text, "1"));
        let number = |text: &str| text.parse::<f64>().map_err(|_| ALLOWED.to_string());
        let alpha = number(over)? / number(under)?;
        if !(0.01..=1.0).contains(&alpha) {
            return Err(ALLOWED.to_string());
        }
        // Down: what is exactly alpha of the length is far enough.
        Ok(Alpha((alpha * ONE as f64) as u32))
    }
}

impl Alpha {
    pub fn apply(self, knobs: &mut rodata) {
        knobs.sbco_alpha = self.0;
    }
}

/// `cohort tune`: change the scheduler that another process has loaded.
pub fn tune(alpha: Alpha, host: &Host) -> Result<(), Failure> {
    say::start_log(0);
    if let Some(refusal) = host.capabilities() {
        return Err(Failure::refused(refusal));
    }
    let map = monitor::map_of_running(MAP).ok_or_else(|| {
        Failure::refused("nothing to tune: no cohort of this version is scheduling; start `cohort run`")
    })?;
    change(&map, alpha)?;
    info!("alpha is changed until the scheduler is loaded again");
    Ok(())
}

/// Say that alpha counts in the scheduler that was loaded, and how much it is.
pub fn show(map: &impl MapCore, parts: u32) -> libbpf_rs::Result<()> {
    map.update(&0u32.to_ne_bytes(), &parts.to_ne_bytes(), MapFlags::ANY)
}

fn change(map: &impl MapCore, alpha: Alpha) -> Result<(), Failure> {
    let failed = |e: libbpf_rs::Error| Failure::failed(format!("cannot change alpha: {e:#}"));
    let now = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
    check_that_it_counts(&now.unwrap_or_default())?;
    show(map, alpha.0).map_err(failed)
}

/// `now`: what is in the map.
fn check_that_it_counts(now: &[u8]) -> Result<(), Failure> {
    if now.iter().any(|byte| *byte != 0) {
        return Ok(());
    }
    Err(Failure::refused(
        "--sbco-alpha needs --order sbco, which the scheduler that runs has not: start `cohort run --order sbco`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::{MapHandle, MapType};

    #[test]
    fn alpha_is_not_changed_where_it_does_not_count() {
        let Err(Failure { status, line }) = check_that_it_counts(&[0; 4]) else { panic!("taken") };
        assert!(status == 2 && line.contains("needs --order sbco") && !line.contains('\n'), "{line}");
        assert_eq!(check_that_it_counts(&43_690u32.to_ne_bytes()), Ok(()));
        assert!(check_that_it_counts(&[]).is_err());
    }

    #[test]
    fn alpha_is_changed_in_a_scheduler_that_has_said_its_own() {
        let opts = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        // Where this user may have no map there is nobody to tell.
        let Ok(map) = MapHandle::create(MapType::Array, None::<&str>, 4, 4, 1, &opts) else { return };
        assert_eq!(change(&map, Alpha(7)).unwrap_err().status, 2);
        show(&map, 43_690).unwrap();
        assert_eq!(change(&map, Alpha(7)), Ok(()));
        let now = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap();
        assert_eq!(now, Some(7u32.to_ne_bytes().to_vec()));
    }

    #[test]
    fn alpha_is_a_number_or_a_fraction() {
        for (text, parts) in [("2/3", 43_690), ("1", 65_536), ("0.5", 32_768), (".25", 16_384), ("0.01", 655)]
        {
            assert_eq!(text.parse(), Ok(Alpha(parts)), "{text}");
        }
        for wrong in ["", "0", "0.009", "1.01", "3/2", "2/0", "0/0", "-1/-2x", "nan", "inf", "two", "1/2/3"] {
            assert_eq!(wrong.parse::<Alpha>(), Err(ALLOWED.to_string()), "{wrong}");
        }
    }

    #[test]
    fn two_thirds_of_three_is_two() {
        // A queue of 3, of 6, of 63: as the scheduler rounds it, and as it is by default.
        let Alpha(parts) = "2/3".parse().unwrap();
        for length in (3..64).step_by(3) {
            assert_eq!((length * u64::from(parts)).div_ceil(ONE), length * 2 / 3);
        }
    }
}
