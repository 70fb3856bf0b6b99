//! A big area of memory on huge pages, asked for as the store asks for its region: pages from the kernel's pool if
//! there are enough, otherwise ordinary memory with the wish for transparent huge pages.

use std::io;

use memmap2::{Advice, MmapMut, MmapOptions};

/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What kind of pages an area got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// 2 MiB pages from the kernel's pool.
    Huge,
    /// Memory for which transparent huge pages were asked; how much of it got them is known once it is filled.
    Transparent,
    /// 4 KiB pages.
    Ordinary,
}

/// Memory of this process.
#[derive(Debug)]
pub struct Area {
    map: MmapMut,
    pages: Pages,
}

impl Area {
    /// At least `bytes` of zeroed memory; with `huge`, on huge pages as far as there are any.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(bytes: usize, huge: bool) -> io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(HUGE_PAGE_BYTES);
        if huge && let Ok(map) = MmapOptions::new().len(bytes).huge(Some(21)).populate().map_anon() {
            return Ok(Self { map, pages: Pages::Huge });
        }
        let map = MmapOptions::new().len(bytes).map_anon()?;
        let advised = huge && map.advise(Advice::HugePage).is_ok();
        Ok(Self { map, pages: if advised { Pages::Transparent } else { Pages::Ordinary } })
    }

    /// The memory.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }

    /// The memory.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The kind of pages, in words; for transparent ones with the share that the kernel has granted so far.
    pub fn describe(&self) -> String {
        match self.pages {
            Pages::Huge => "2 MiB pages".into(),
            Pages::Ordinary => "4 KiB pages".into(),
            Pages::Transparent => match granted_bytes(self.map.as_ptr() as usize) {
                Some(granted) => {
                    let percent = granted as f64 / self.map.len() as f64 * 100.0;
                    format!("transparent huge pages for {:.0} %", percent.min(100.0))
                }
                None => "transparent huge pages asked for".into(),
            },
        }
    }
}

/// Bytes of memory that this machine can still give out, if the kernel says.
pub fn available_bytes() -> Option<u64> {
    parse_available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(kib.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Bytes on transparent huge pages in the mapping that holds `address`.
fn granted_bytes(address: usize) -> Option<u64> {
    parse_granted(&std::fs::read_to_string("/proc/self/smaps").ok()?, address)
}

fn parse_granted(smaps: &str, address: usize) -> Option<u64> {
    let holds = |line: &str| -> Option<bool> {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        let (from, to) = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
        Some((from..to).contains(&address))
    };
    let mut lines = smaps.lines().skip_while(|line| holds(line) != Some(true)).skip(1);
    let line = lines.find(|line| line.starts_with("AnonHugePages:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_what_was_asked_for_on_either_kind_of_pages() {
        for huge in [true, false] {
            let mut area = Area::new(3 << 20, huge).unwrap();
            assert_eq!(area.bytes().len(), 4 << 20);
            assert!(area.bytes().iter().all(|byte| *byte == 0));
            area.bytes_mut()[4_194_303] = 7;
            assert_eq!(area.bytes()[4_194_303], 7);
            assert!(!area.describe().is_empty());
        }
        assert_eq!(Area::new(0, false).unwrap().describe(), "4 KiB pages");
    }

    #[test]
    fn available_memory_is_read() {
        assert_eq!(parse_available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(parse_available("MemTotal: 9 kB\n"), None);
    }

    #[test]
    fn the_right_mapping_is_read() {
        let smaps = "7f00-7f10 rw-p 0 00:00 0\nSize: 16 kB\nAnonHugePages:  0 kB\n\
                     7f20-7f40 rw-p 0 00:00 0\nSize: 32 kB\nAnonHugePages:  4096 kB\n";
        assert_eq!(parse_granted(smaps, 0x7f08), Some(0));
        assert_eq!(parse_granted(smaps, 0x7f20), Some(4 << 20));
        assert_eq!(parse_granted(smaps, 0x7f10), None);
    }
}
