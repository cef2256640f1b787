// SPDX-License-Identifier: GPL-2.0-only
//! `--monitor`: statistics of a scheduler that another process has loaded.
//!
//! Nothing is pinned for this: a pin would outlive a runner that is killed. The scheduler's programs are found by name among all loaded
//! ones, and its maps by the programs.

use std::time::Duration;

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Program, ProgramType};
use tracing::{debug, info};

use crate::bpf::types::{entity_ctx, vm_ctx};
use crate::checks::{Host, OURS};
use crate::intf;
use crate::output::Output;
use crate::run::Stops;
use crate::say::Failure;
use crate::stats::{self, Names, Tables};

/// What the names of the scheduler's programs begin with.
const PROGRAMS: &str = "cohort_";
/// The programs that count who communicates, of which at least one is there; the kernel keeps 15 characters of a name.
const TRAFFIC_PROGRAMS: [&str; 2] = ["cohort_on_irq", "cohort_on_fault"];
/// While the scheduler is loaded anew (when KVM appears) there is none for a moment.
const GONE_MAX: Duration = Duration::from_secs(10);
/// ... and then one that has not begun, for as long as the verifier takes. systemd waits for a start no longer than this (the unit's TimeoutStartSec=).
const LOADING_MAX: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What of our scheduler is seen in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight<F> {
    Running(F),
    /// Some of its programs are loaded, and it has not begun.
    Loading,
    Nothing,
}

/// A scheduler found in the kernel.
struct Found {
    program_id: u32,
    vms: MapHandle,
    stats: MapHandle,
    entities: MapHandle,
}

pub fn watch(host: &Host, interval: Duration, json: bool, stops: &Stops) -> Result<(), Failure> {
    if let Some(refusal) = host.capabilities() {
        return Err(Failure::refused(refusal));
    }
    let first = match find()? {
        Sight::Loading => wait_for_next(find, |time| stops.wait(time))?,
        sight => sight,
    };
    let mut found = match first {
        Sight::Running(found) => found,
        _ if stops.asked() => return Ok(()),
        Sight::Loading => {
            return Err(Failure::refused(
                "nothing to monitor: cohort is still being loaded; try again when it is scheduling",
            ));
        }
        Sight::Nothing => return Err(nothing_to_monitor(host)),
    };
    let output = Output::stdout();
    let mut names = Names::default();
    loop {
        debug!("watching the scheduler of program {}", found.program_id);
        watch_one(&found, host, interval, json, stops, &output, &mut names)?;
        if stops.asked() || output.is_closed() {
            break;
        }
        match wait_for_next(find, |time| stops.wait(time))? {
            Sight::Running(next) => found = next,
            Sight::Loading => {
                info!("the scheduler has ended; the next one is still being loaded");
                break;
            }
            Sight::Nothing => {
                info!("the scheduler has ended");
                break;
            }
        }
    }
    output.finish(|| true)
}

fn nothing_to_monitor(host: &Host) -> Failure {
    let other = match host.loaded_scheduler() {
        Some(name) if name == OURS => {
            return Failure::refused(
                "cohort is scheduling, and its programs are not seen here: run as root, outside of containers and user namespaces",
            );
        }
        other => other.map(|name| format!(" (but {name} is)")).unwrap_or_default(),
    };
    Failure::refused(format!("nothing to monitor: cohort is not scheduling{other}; start `cohort run`"))
}

/// Print statistics until the scheduler, the reader or the user ends it.
fn watch_one(
    found: &Found,
    host: &Host,
    interval: Duration,
    json: bool,
    stops: &Stops,
    output: &Output,
    names: &mut Names,
) -> Result<(), Failure> {
    let failed = |e| Failure::failed(format!("cannot read the scheduler's statistics: {e:#}"));
    let tables = Tables { vms: &found.vms, stats: &found.stats, entities: &found.entities };
    let mut before = stats::read(&tables, host, names).map_err(failed)?;
    while !stops.wait(interval) && !output.is_closed() && Program::fd_from_id(found.program_id).is_ok() {
        let now = stats::read(&tables, host, names).map_err(failed)?;
        output.send(if json { now.json() + "\n" } else { now.table(&before) + "\n" });
        before = now;
    }
    Ok(())
}

/// Look until there is one that runs, none has been seen for too long, or one takes too long to load; what was seen last. `wait`: for so long, and whether
/// the user has had enough.
fn wait_for_next<F>(
    mut look: impl FnMut() -> Result<Sight<F>, Failure>,
    mut wait: impl FnMut(Duration) -> bool,
) -> Result<Sight<F>, Failure> {
    let (mut gone, mut waited) = (Duration::ZERO, Duration::ZERO);
    loop {
        let sight = look()?;
        match sight {
            Sight::Running(_) => return Ok(sight),
            Sight::Loading => gone = Duration::ZERO,
            Sight::Nothing => gone += LOOK_EVERY,
        }
        if gone > GONE_MAX || waited >= LOADING_MAX || wait(LOOK_EVERY) {
            return Ok(sight);
        }
        waited += LOOK_EVERY;
    }
}

/// The operations of loaded schedulers of this kind, and the maps that each uses. A map may be gone by now, with its scheduler.
fn operations() -> impl Iterator<Item = (u32, impl Iterator<Item = MapHandle>)> {
    let with_maps = ProgInfoQueryOptions::default().include_map_ids(true);
    ProgInfoIter::with_query_opts(with_maps)
        .filter(|program| {
            program.ty == ProgramType::StructOps
                && program.name.as_encoded_bytes().starts_with(PROGRAMS.as_bytes())
        })
        .map(|program| {
            let maps = program.map_ids.into_iter().filter_map(|id| MapHandle::from_map_id(id).ok());
            (program.id, maps)
        })
}

/// The map of that name that the scheduler uses which another process has loaded.
pub fn map_of_running(name: &str) -> Option<MapHandle> {
    operations().flat_map(|(_, maps)| maps).find(|map| map.name().to_str() == Some(name))
}

/// The maps `vms` and `traffic` of a scheduler that counts who communicates with whom.
pub fn find_traffic(host: &Host) -> Result<(MapHandle, MapHandle), Failure> {
    if let Some(refusal) = host.capabilities() {
        return Err(Failure::refused(refusal));
    }
    let vms = match find()? {
        Sight::Running(found) => Some(found.vms),
        Sight::Loading | Sight::Nothing => None,
    };
    let found = vms.and_then(|vms| {
        // Small where nobody counts: interrupts are watched for another reason as well.
        let traffic = |program: &&str| map_of(program, "traffic").filter(|map| map.max_entries() > 1);
        Some((vms, TRAFFIC_PROGRAMS.iter().find_map(traffic)?))
    });
    found.ok_or_else(|| {
        Failure::refused("nobody counts who communicates with whom: start `cohort run --policy partial-auto`")
    })
}

/// The map of that name that the program of that name uses.
fn map_of(program: &str, map: &str) -> Option<MapHandle> {
    let with_maps = ProgInfoQueryOptions::default().include_map_ids(true);
    let mut programs = ProgInfoIter::with_query_opts(with_maps);
    let found = programs.find(|found| found.name.as_encoded_bytes() == program.as_bytes())?;
    let maps = found.map_ids.iter().filter_map(|id| MapHandle::from_map_id(*id).ok());
    maps.into_iter().find(|found| found.name().to_str() == Some(map))
}

/// Look for the scheduler: one of its programs that uses all three maps.
fn find() -> Result<Sight<Found>, Failure> {
    let mut sight = Sight::Nothing;
    for (program_id, maps) in operations() {
        let (mut vms, mut stats, mut entities) = (None, None, None);
        for map in maps {
            match map.name().to_str() {
                Some("vms") => vms = Some(map),
                Some("stats") => stats = Some(map),
                Some("entities") => entities = Some(map),
                _ => {}
            }
        }
        let (Some(vms), Some(stats), Some(entities)) = (vms, stats, entities) else { continue };
        let layout = layout(&stats);
        if !is_ours([stats.max_entries(), vms.value_size(), entities.value_size()], layout) {
            return Err(Failure::refused(
                "the scheduler that runs is of another version of cohort: monitor it with that version",
            ));
        }
        // Loaded, and not yet in charge.
        if layout == 0 {
            sight = Sight::Loading;
            continue;
        }
        return Ok(Sight::Running(Found { program_id, vms, stats, entities }));
    }
    Ok(sight)
}

/// The number of the scheduler's layout, which is behind its counters; 0: it has not begun.
fn layout(stats: &MapHandle) -> u64 {
    let key = (intf::STATS.len() as u32).to_ne_bytes();
    let values = stats.lookup_percpu(&key, MapFlags::ANY).ok().flatten().unwrap_or_default();
    // One pCPU has written it, the others have 0.
    values.iter().filter_map(|bytes| bytes.first_chunk::<8>()).map(|bytes| u64::from_ne_bytes(*bytes)).sum()
}

/// Are these maps of this version? `sizes`: how many values `stats` has, and how long one of `vms` is and one of `entities`.
fn is_ours(sizes: [u32; 3], layout: u64) -> bool {
    let ours = [intf::STATS.len() + 1, size_of::<vm_ctx>(), size_of::<entity_ctx>()];
    sizes.map(|size| size as usize) == ours && (layout == 0 || layout == u64::from(intf::LAYOUT_NUMBER))
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use super::*;

    /// What comes of waiting when so many looks see this, one after the other, and later ones nothing; and how long it takes.
    fn waited(seen: &[(usize, Sight<u32>)]) -> (Sight<u32>, Duration) {
        let mut all = seen.iter().flat_map(|(count, sight)| repeat_n(*sight, *count));
        let mut time = Duration::ZERO;
        let last = wait_for_next(
            || Ok(all.next().unwrap_or(Sight::Nothing)),
            |wait| {
                time += wait;
                false
            },
        );
        (last.unwrap(), time)
    }

    #[test]
    fn a_scheduler_that_is_being_loaded_has_not_ended() {
        use Sight::{Loading, Nothing, Running};
        assert_eq!(waited(&[(1, Running(7))]), (Running(7), Duration::ZERO));
        assert_eq!(waited(&[]), (Nothing, GONE_MAX));
        // The verifier takes 50 s, refuses it, and is given another one.
        let slow = [(10, Nothing), (100, Loading), (10, Nothing), (1, Running(7))];
        assert_eq!(waited(&slow), (Running(7), LOOK_EVERY * 120));
        assert_eq!(waited(&[(4, Loading)]), (Nothing, LOOK_EVERY * 4 + GONE_MAX), "loading it has failed");
        assert_eq!(waited(&[(1000, Loading)]), (Loading, LOADING_MAX));
        let stopped = wait_for_next(|| Ok(Sight::<u32>::Loading), |_| true);
        assert_eq!(stopped, Ok(Loading), "the user has had enough");
    }

    #[test]
    fn loading_is_waited_for_as_long_as_systemd_waits() {
        let unit = include_str!("../systemd/cohort.service");
        let allowed = unit.lines().find_map(|line| line.strip_prefix("TimeoutStartSec=")).unwrap();
        assert_eq!(LOADING_MAX.as_secs().to_string(), allowed);
    }

    #[test]
    fn a_scheduler_of_another_version_is_not_taken_for_ours() {
        let ours = [intf::STATS.len() + 1, size_of::<vm_ctx>(), size_of::<entity_ctx>()].map(|n| n as u32);
        let number = u64::from(intf::LAYOUT_NUMBER);
        assert!(is_ours(ours, number));
        assert!(is_ours(ours, 0), "it has not begun");
        assert!(!is_ours(ours, number + 1) && !is_ours(ours, u64::MAX));
        for (at, size) in ours.into_iter().enumerate() {
            for size in [size - 1, size + 1, 2 * size] {
                let mut other = ours;
                other[at] = size;
                assert!(!is_ours(other, number), "{other:?}");
            }
        }
    }
}
