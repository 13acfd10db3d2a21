//! What Brig brings along, and what it takes of the host.

use super::{Found, lack, read};
use crate::host::Places;
use crate::host::uids::{BLOCK, UID_BASE};
use crate::policy::Trust;
use crate::template::Templates;

pub(super) fn look(places: &Places) -> Vec<(&'static str, Found)> {
    vec![
        ("uid range", uid_range()),
        ("programs", programs(places)),
        ("images", images(places)),
    ]
}

/// Whether somebody else was promised uids of Brig's range.
fn uid_range() -> Found {
    let end = u64::from(UID_BASE) + 63 * 1024 * u64::from(BLOCK);
    let taken = ["/etc/subuid", "/etc/subgid"].iter().find_map(|path| {
        read(path)?.lines().find_map(|line| {
            let mut parts = line.split(':').skip(1).map(|part| part.parse::<u64>().unwrap_or(0));
            let (first, count) = (parts.next()?, parts.next()?);
            (first < end && first + count > u64::from(UID_BASE)).then(|| format!("{path}: {line}"))
        })
    });
    match taken {
        Some(line) => Err(lack(line, "remove or move that line")),
        None => Ok(format!("{UID_BASE} to {} are free", end - 1)),
    }
}

fn programs(places: &Places) -> Found {
    let missing: Vec<&str> = ["brig-init", "brig-files"]
        .into_iter()
        .filter(|name| !places.programs.join(name).is_file())
        .collect();
    if missing.is_empty() {
        Ok(places.programs.display().to_string())
    } else {
        let found = format!("no {}", missing.join(", no "));
        Err(lack(found, "make install, or --programs DIR"))
    }
}

fn images(places: &Places) -> Found {
    let mend = "brig template build data";
    let templates = Templates::load(&places.images, Trust::RootOwned).map_err(|error| lack(error.to_string(), mend))?;
    let ids: Vec<&str> = templates.iter().map(|template| template.id.as_str()).collect();
    if ids.is_empty() {
        Err(lack("none", mend))
    } else {
        Ok(ids.join(", "))
    }
}
