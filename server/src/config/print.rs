//! `--print-config`: the resulting configuration as a file that can be fed back.

use std::fmt::Write;

use super::value::{format_size, name_of};
use super::{
    Allow, Config, HUGEPAGES, KEYS, LISTEN_NONE, LOG_FORMATS, LOG_LEVELS, ON_FULL, RDMA_CHOICES, Sources,
};

impl Config {
    /// The configuration as TOML, with the origin of each value as a comment.
    pub fn to_toml(&self, sources: &Sources) -> String {
        let mut out = String::from("# What kv-server runs with. It can be fed back by --config FILE.\n");
        for key in KEYS {
            let (comment_out, value) = match self.value_of(key) {
                Some(value) => ("", value.to_string()),
                None if key == "expected-keys" => ("# ", "(starts small and grows)".to_owned()),
                None => ("# ", "(chosen at start)".to_owned()),
            };
            let line = format!("{comment_out}{key} = {value}");
            writeln!(out, "{line:<48} # {}", sources.origin(key)).expect("writing to a string succeeds");
        }
        out
    }

    fn value_of(&self, key: &str) -> Option<toml::Value> {
        let text = |text: &str| toml::Value::String(text.to_owned());
        let number = |number: u64| toml::Value::Integer(number as i64);
        Some(match key {
            "memory" => text(&format_size(self.memory_bytes)),
            "max-value" => text(&format_size(self.value_max_bytes as u64)),
            "socket" => text(&self.socket.to_string_lossy()),
            "listen" => match &self.listen {
                Some(address) => text(&address.to_string()),
                None => text(LISTEN_NONE),
            },
            "rdma" => text(name_of(self.rdma, &RDMA_CHOICES)),
            "rdma-device" => text(self.rdma_device.as_deref()?),
            "rdma-port" => number(self.rdma_port?.into()),
            "rdma-gid" => number(self.rdma_gid?.into()),
            "workers" => number(self.workers as u64),
            "hugepages" => text(name_of(self.hugepages, &HUGEPAGES)),
            "expected-keys" => number(self.expected_keys?),
            "on-full" => text(name_of(self.on_full, &ON_FULL)),
            "allow-uid" => toml::Value::Array(match &self.allow {
                Allow::Any => vec![text("any")],
                Allow::Users(users) => users.iter().map(|&uid| number(uid.into())).collect(),
            }),
            "max-clients" => number(self.max_clients as u64),
            "log-level" => text(name_of(self.log_level, &LOG_LEVELS)),
            "log-format" => text(name_of(self.log_format, &LOG_FORMATS)),
            key => unreachable!("{key} is not in KEYS"),
        })
    }
}
