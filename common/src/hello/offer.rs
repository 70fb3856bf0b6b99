//! What a server offers, said to whoever asks before choosing a transport.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::AnswerError;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const RDMA: u32 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct OfferWords {
    boot_id: [u8; 16],
    device: U64,
    inode: U64,
    flags: U32,
    path_bytes: U32,
}

/// Bytes of an offer before the socket's path.
pub const OFFER_BYTES: usize = size_of::<OfferWords>();
/// Bytes of the longest path that an offer names. A Unix socket's is shorter.
pub const OFFER_PATH_MAX_BYTES: usize = 1024;

const _: () = assert!(OFFER_BYTES == 40);

/// What a server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The Unix socket by which clients of the same host get shared memory.
    pub socket: SocketFile,
    /// Whether the server serves RDMA.
    pub has_rdma: bool,
}

/// A socket file and what tells it from another of the same path on another host, or in another container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFile {
    /// Its path, as its server sees it.
    pub path: PathBuf,
    /// Random per boot of the host.
    pub boot_id: [u8; 16],
    /// The file system that the file lies on (`st_dev`).
    pub device: u64,
    /// Which file of that it is (`st_ino`).
    pub inode: u64,
}

impl SocketFile {
    /// The file at `path`.
    ///
    /// # Errors
    /// What the system says about the file, or about this boot's id.
    pub fn at(path: &Path) -> io::Result<SocketFile> {
        let path = std::path::absolute(path)?;
        let file = fs::metadata(&path)?;
        let boot_id = parse_boot_id(&fs::read_to_string(BOOT_ID)?)
            .ok_or_else(|| io::Error::other(format!("{BOOT_ID} holds no UUID")))?;
        Ok(SocketFile { path, boot_id, device: file.dev(), inode: file.ino() })
    }

    /// Whether this process sees the very same file at that path.
    ///
    /// # Errors
    /// Why it does not, for people.
    pub fn is_here(&self) -> Result<(), String> {
        let shown = self.path.display();
        match SocketFile::at(&self.path) {
            Ok(here) if here == *self => Ok(()),
            Ok(here) if here.boot_id != self.boot_id => Err("the server is on another host".into()),
            Ok(_) => Err(format!("{shown} is another file here than for the server")),
            Err(error) => Err(format!("the server's socket {shown} is not to be seen here: {error}")),
        }
    }
}

/// The 16 bytes of a UUID as the kernel writes it.
fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
    (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok()).flatten().map(|id| {
        let mut bytes = id.to_le_bytes();
        bytes.reverse();
        bytes
    })
}

impl Offer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let path = self.socket.path.as_os_str().as_bytes();
        assert!(path.len() <= OFFER_PATH_MAX_BYTES, "the path of a socket that is bound is shorter");
        let words = OfferWords {
            boot_id: self.socket.boot_id,
            device: self.socket.device.into(),
            inode: self.socket.inode.into(),
            flags: if self.has_rdma { RDMA } else { 0 }.into(),
            path_bytes: (path.len() as u32).into(),
        };
        [words.as_bytes(), path].concat()
    }

    pub(super) fn decode(body: &[u8]) -> Result<Offer, AnswerError> {
        let field = |field, found: u64| AnswerError::Field { field, found };
        let (words, path) =
            OfferWords::ref_from_prefix(body).map_err(|_| field("length", body.len() as u64))?;
        let (flags, path_bytes) = (words.flags.get(), words.path_bytes.get() as usize);
        if flags & !RDMA != 0 {
            return Err(field("offer flags", flags.into()));
        }
        if path.len() != path_bytes || path_bytes > OFFER_PATH_MAX_BYTES {
            return Err(field("path length", path_bytes as u64));
        }
        let socket = SocketFile {
            path: OsStr::from_bytes(path).into(),
            boot_id: words.boot_id,
            device: words.device.get(),
            inode: words.inode.get(),
        };
        Ok(Offer { socket, has_rdma: flags & RDMA != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_here_if_it_is_the_same_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kv.sock");
        let error = SocketFile::at(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        fs::write(&path, b"").unwrap();
        let file = SocketFile::at(&path).unwrap();
        assert_eq!(file.is_here(), Ok(()));
        let elsewhere = SocketFile { boot_id: [0; 16], ..file.clone() };
        assert_eq!(elsewhere.is_here(), Err("the server is on another host".into()));
        for other in [SocketFile { inode: 0, ..file.clone() }, SocketFile { device: 0, ..file.clone() }] {
            assert!(other.is_here().unwrap_err().contains("is another file here"));
        }
        fs::remove_file(&path).unwrap();
        assert!(file.is_here().unwrap_err().contains("not to be seen here"));
    }

    #[test]
    fn boot_ids_are_uuids() {
        let id = parse_boot_id("00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
        assert_eq!(id[..3], [0x00, 0x11, 0x22]);
        assert_eq!(id[15], 0xff);
        assert_eq!(parse_boot_id("00112233"), None);
        assert_eq!(parse_boot_id("zz112233-4455-6677-8899-aabbccddeeff"), None);
    }
}
