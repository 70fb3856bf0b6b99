use super::*;
use crate::args::Flags;

fn no_env() -> Vec<(String, String)> {
    Vec::new()
}

fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn resolve(flags: &Flags, env: Vec<(String, String)>) -> Result<Config, ConfigError> {
    Config::resolve(&Sources::collect(flags, env)?)
}

fn file(text: &str) -> (tempfile::TempDir, Flags) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv.toml");
    std::fs::write(&path, text).unwrap();
    (dir, Flags { config: Some(path.to_str().unwrap().to_owned()), ..Flags::default() })
}

#[test]
fn sizes_are_read_and_written_back() {
    for (text, bytes) in [
        ("0", 0),
        ("17", 17),
        ("16KiB", 16 << 10),
        ("512 MiB", 512 << 20),
        ("64GiB", 64 << 30),
        ("2TiB", 2 << 40),
    ] {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
        assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
    }
    for text in
        ["", "GiB", "-1", "1.5GiB", "64 bananas", "99999999999999999999", "16777217TiB", "0x10", "1GiB1"]
    {
        assert!(parse_size(text).is_err(), "{text}");
    }
    for (text, meant) in [("64GB", "64GiB"), ("64g", "64GiB"), ("5M", "5MiB"), ("7kb", "7KiB")] {
        let error = parse_size(text).unwrap_err();
        assert!(error.contains(&format!("did you mean {meant}?")), "{error}");
    }
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let (_dir, mut flags) = file("memory = \"32MiB\"\nworkers = 3\nmax-clients = 7\n");
    let env = env(&[("KV_MEMORY", "64MiB"), ("KV_WORKERS", "2")]);
    flags.memory = Some("128MiB".into());
    let sources = Sources::collect(&flags, env).unwrap();
    let config = Config::resolve(&sources).unwrap();
    assert_eq!((config.memory_bytes, config.workers, config.max_clients), (128 << 20, 2, 7));
    assert_eq!(sources.origin("memory"), Origin::Flag("memory"));
    assert_eq!(sources.origin("workers"), Origin::Variable("KV_WORKERS".into()));
    assert!(matches!(sources.origin("max-clients"), Origin::File(_)));
    assert_eq!(sources.origin("socket"), Origin::Default);
}

#[test]
fn the_file_may_be_named_by_the_environment() {
    let (_dir, flags) = file("workers = 5");
    let env = env(&[("KV_CONFIG", flags.config.as_deref().unwrap())]);
    assert_eq!(resolve(&Flags::default(), env).unwrap().workers, 5);
}

#[test]
fn what_is_printed_can_be_fed_back() {
    let flags = Flags {
        memory: Some("17000000".into()),
        max_value: Some("1GiB".into()),
        socket: Some("/a \"quoted\" path.sock".into()),
        listen: Some("[::1]:17".into()),
        rdma: Some("on".into()),
        rdma_device: Some("mlx5_0".into()),
        rdma_port: Some("2".into()),
        rdma_gid: Some("0".into()),
        workers: Some("4".into()),
        hugepages: Some("require".into()),
        expected_keys: Some("1000".into()),
        on_full: Some("evict".into()),
        allow_uid: vec!["1000".into(), "5".into(), "1000".into()],
        max_clients: Some("12".into()),
        log_level: Some("trace".into()),
        log_format: Some("json".into()),
        ..Flags::default()
    };
    for flags in [
        flags.clone(),
        Flags::default(),
        Flags { allow_uid: vec!["any".into()], listen: Some("none".into()), ..flags },
    ] {
        let sources = Sources::collect(&flags, no_env()).unwrap();
        let config = Config::resolve(&sources).unwrap();
        let (_dir, again) = file(&config.to_toml(&sources));
        assert_eq!(resolve(&again, no_env()).unwrap(), config);
    }
}

#[test]
fn unknown_keys_are_named_with_the_nearest_known_one() {
    let unknown = |text: &str| {
        let (_dir, flags) = file(text);
        match resolve(&flags, no_env()).unwrap_err() {
            ConfigError::UnknownKey { key, nearest, .. } => (key, nearest),
            error => panic!("{error}"),
        }
    };
    assert_eq!(unknown("memroy = 1"), ("memroy".into(), Some("memory".into())));
    assert_eq!(unknown("max_clients = 1"), ("max_clients".into(), Some("max-clients".into())));
    assert_eq!(unknown("bananas = 1"), ("bananas".into(), None));
    assert_eq!(unknown("[server]\nmemory = 1"), ("server".into(), None));
}

#[test]
fn variables_that_look_misspelt_are_errors_and_those_of_others_are_not() {
    let error = resolve(&Flags::default(), env(&[("KV_MAX_CLIENT", "1")])).unwrap_err();
    assert_eq!(
        error,
        ConfigError::UnknownVariable { name: "KV_MAX_CLIENT".into(), nearest: "KV_MAX_CLIENTS".into() }
    );
    let foreign =
        env(&[("KV_URL", "x"), ("KV_SERVICE_HOST", "10.0.0.1"), ("KV_PORT", "tcp://x"), ("MEMORY", "x")]);
    assert_eq!(resolve(&Flags::default(), foreign), Ok(Config::default()));
}

#[test]
fn values_that_cannot_be_used_say_what_was_expected_and_where_they_were_written() {
    let long_path = format!("/{}", "x".repeat(200));
    for (key, value, expected) in [
        ("KV_MEMORY", "1MiB", "too small; expected 16MiB to 16TiB"),
        ("KV_MEMORY", "17TiB", "too large; expected 16MiB to 16TiB"),
        ("KV_MEMORY", "lots", "expected a size as 64GiB"),
        ("KV_MAX_VALUE", "0", "expected 1 byte to 1GiB"),
        ("KV_MAX_VALUE", "1025MiB", "expected 1 byte to 1GiB"),
        ("KV_WORKERS", "0", "expected a number from 1 to 64"),
        ("KV_WORKERS", "many", "expected a number from 1 to 64"),
        ("KV_LISTEN", "", "expected host:port"),
        ("KV_LISTEN", "localhost:http", "expected host:port, 127.0.0.1:7410 or [::1]:7410, or none"),
        ("KV_RDMA", "yes", "expected one of auto, off, on"),
        ("KV_RDMA_DEVICE", "", "expected the name of a device"),
        ("KV_RDMA_PORT", "0", "expected a number from 1 to 255"),
        ("KV_RDMA_GID", "256", "expected a number from 0 to 255"),
        ("KV_HUGEPAGES", "on", "expected one of auto, require, off"),
        ("KV_EXPECTED_KEYS", "-5", "expected a number from 1"),
        ("KV_ON_FULL", "drop", "expected one of reject, evict"),
        ("KV_ALLOW_UID", "1000, root", "expected a user's number, or any"),
        ("KV_MAX_CLIENTS", "5000", "expected a number from 1 to 4096"),
        ("KV_LOG_LEVEL", "loud", "expected one of error, warn"),
        ("KV_LOG_FORMAT", "xml", "expected one of text, json"),
        ("KV_SOCKET", "", "expected the path of a Unix socket"),
        ("KV_SOCKET", &long_path, "at most 107 are possible"),
    ] {
        let message = resolve(&Flags::default(), env(&[(key, value)])).unwrap_err().to_string();
        assert!(message.contains(expected) && message.starts_with(key), "{key}={value}: {message}");
    }
}

#[test]
fn values_of_a_wrong_type_in_the_file_are_errors() {
    for text in ["memory = 1.5", "memory = true", "workers = [1]", "allow-uid = [1.5]", "allow-uid = [[1]]"] {
        let (_dir, flags) = file(text);
        assert!(matches!(resolve(&flags, no_env()), Err(ConfigError::BadValue { .. })), "{text}");
    }
    let (_dir, flags) = file("allow-uid = [1000, \"any\"]");
    assert_eq!(resolve(&flags, no_env()).unwrap().allow, Allow::Any);
    let (_dir, flags) = file("memory = ");
    assert!(matches!(resolve(&flags, no_env()), Err(ConfigError::Syntax { .. })));
    let missing = Flags { config: Some("/nonexistent/kv.toml".into()), ..Flags::default() };
    assert!(matches!(resolve(&missing, no_env()), Err(ConfigError::Unreadable { .. })));
}

#[test]
fn own_user_and_root_may_always_connect() {
    let allow = Allow::Users(vec![1000]);
    assert!([0, 7, 1000].iter().all(|&uid| allow.permits(uid, 7)));
    assert!(!allow.permits(1001, 7) && Allow::Any.permits(1001, 7));
}
