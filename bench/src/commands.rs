//! The subcommands, from arguments to exit code.

use kv_client::Options;
use kv_common::endpoint::Endpoint;

use crate::args::{CacheArgs, Cli, Command, CompareArgs, FloorPages, LoadArgs, Required, RunArgs, StoreArgs};
use crate::cache;
use crate::clock::SystemClock;
use crate::compare::{self, ComparePlan};
use crate::error::CommandError;
use crate::plan::{UsageError, as_run, fill, read_back};
use crate::raw;
use crate::raw::args::RawArgs;
use crate::raw::error::RawError;
use crate::report::compare::CompareReport;
use crate::report::json::RunJson;
use crate::report::progress::Progress;
use crate::report::sink::{JsonSink, tell};
use crate::report::{Exit, Report, table, ycsb};
use crate::runner::{RunPlan, RunResult, null_ns_per_op, run};
use crate::store::dashmap::DashMapFactory;
use crate::store::floor::FloorFactory;
use crate::store::kv::KvFactory;
use crate::store::null::NullFactory;
use crate::store::pages::available_bytes;
use crate::store::{Factory, StoreError};
use crate::workload::skew;

/// Carries out `cli`. Results go to standard output, progress and errors to standard error.
pub fn main(cli: &Cli) -> Exit {
    let done = match &cli.command {
        Command::Load(args) => load(args),
        Command::Run(args) => run_workload(args),
        Command::Cache(args) => cache(args),
        Command::Compare(args) => compare_all(args),
        Command::Raw(args) => raw(args),
    };
    done.unwrap_or_else(|error| {
        tell(format_args!("kv-bench: {error}"));
        error.exit()
    })
}

/// The stores that a URL can name.
enum Target {
    Null,
    DashMap,
    Kv(KvFactory),
}

fn target(store: &StoreArgs) -> Result<Target, CommandError> {
    match store.url.as_deref() {
        Some("mem:null") => Ok(Target::Null),
        Some("mem:dashmap") => Ok(Target::DashMap),
        _ => {
            let (url, options) = server(store)?;
            Ok(Target::Kv(KvFactory::connect(&url, options)?))
        }
    }
}

/// The server that is meant, by URL, and how to connect to it.
fn server(store: &StoreArgs) -> Result<(String, Options), CommandError> {
    let endpoint = match store.url.as_deref() {
        None => Endpoint::default_local(),
        Some(url) => Endpoint::parse(url).map_err(|error| UsageError::Url(url.into(), error))?,
    };
    let options = Options {
        timeout: store.timeout,
        index_cache_bytes: usize::try_from(store.index_cache).unwrap_or(usize::MAX),
        get_mode: store.get_mode.into(),
        ..Options::default()
    };
    Ok((endpoint.to_string(), options))
}

/// Bytes that a map takes for a record besides key and value: two allocations, their lengths, the table's slot.
const MAP_OVERHEAD_BYTES: u64 = 96;

/// Refuses what would not fit into memory, rather than being killed half-way.
fn check_memory(what: &'static str, copies: u64, plan: &RunPlan) -> Result<(), CommandError> {
    let (keys, shape) = (plan.workload.keys, plan.shape);
    let record_bytes = (keys.bytes_max() + shape.value_bytes()) as u64 + MAP_OVERHEAD_BYTES;
    let needed_bytes = record_bytes.saturating_mul(plan.workload.records).saturating_mul(copies);
    match available_bytes() {
        Some(available_bytes) if needed_bytes > available_bytes => {
            Err(CommandError::Memory { what, needed_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

fn load(args: &LoadArgs) -> Result<Exit, CommandError> {
    let plan = args.plan()?;
    let sink = JsonSink::open(args.drive.json.as_deref())?;
    match target(&args.store)? {
        Target::Null if args.verify => Err(UsageError::Null("--verify").into()),
        Target::Null => load_into(&NullFactory { value_bytes: plan.shape.value_bytes() }, &plan, false, sink),
        Target::Kv(factory) => load_into(&factory, &plan, args.verify, sink),
        Target::DashMap => load_into(&DashMapFactory::default(), &plan, args.verify, sink),
    }
}

fn load_into<F: Factory>(
    factory: &F,
    plan: &RunPlan,
    verify: bool,
    sink: JsonSink,
) -> Result<Exit, CommandError> {
    let clock = SystemClock::start();
    if factory.is_in_process() {
        check_memory("the map", 1, plan)?;
    }
    let mut result = run_shown("load", factory, plan, &clock)?;
    let loaded = Exit::of_result(&result);
    let mut exit = loaded;
    if verify && loaded == Exit::Done {
        let back = run_shown("verify", factory, &read_back(plan, result.version_base), &clock)?;
        exit = Exit::of_result(&back);
        result.tally.verified = back.tally.verified;
        result.tally.wrong = back.tally.wrong + back.tally.not_found();
        result.tally.examples.extend(back.tally.examples);
        result.tally.fatal = back.tally.fatal;
    }
    let shown =
        RunPlan { verify: if verify { read_back(plan, 0).verify } else { plan.verify }, ..plan.clone() };
    report(factory, &shown, &result, &clock, sink)?;
    Ok(exit)
}

fn run_workload(args: &RunArgs) -> Result<Exit, CommandError> {
    let plan = args.plan()?;
    let sink = JsonSink::open(args.drive.json.as_deref())?;
    match target(&args.store)? {
        Target::Null if args.verify => Err(UsageError::Null("--verify").into()),
        Target::Null => run_on(&NullFactory { value_bytes: plan.shape.value_bytes() }, &plan, sink),
        Target::Kv(factory) => run_on(&factory, &plan, sink),
        Target::DashMap => run_on(&DashMapFactory::default(), &plan, sink),
    }
}

fn run_on<F: Factory>(factory: &F, plan: &RunPlan, sink: JsonSink) -> Result<Exit, CommandError> {
    let clock = SystemClock::start();
    if factory.is_in_process() {
        check_memory("the map", 1, plan)?;
        run_shown("load", factory, &fill(plan), &clock)?;
    }
    let plan =
        &RunPlan { raw_every: if factory.has_raw_reads() { plan.raw_every } else { 0 }, ..plan.clone() };
    let result = run_shown(&format!("workload {}", plan.workload.name), factory, plan, &clock)?;
    report(factory, plan, &result, &clock, sink)?;
    Ok(Exit::of_result(&result))
}

fn run_shown<F: Factory>(
    what: &str,
    factory: &F,
    plan: &RunPlan,
    clock: &SystemClock,
) -> Result<RunResult, StoreError> {
    let mut progress = Progress::new(what, plan);
    run(factory, plan, clock, &mut |done, seconds| progress.show(done, seconds))
}

fn report<F: Factory>(
    factory: &F,
    plan: &RunPlan,
    result: &RunResult,
    clock: &SystemClock,
    sink: JsonSink,
) -> Result<(), CommandError> {
    let report = Report {
        plan,
        result,
        transport: factory.transport(),
        facts: factory.facts(),
        null_ns_per_op: null_ns_per_op(plan, clock)?,
        skew: skew::measure(&plan.workload),
        clock: clock.source(),
    };
    let text = format!("{}\n{}", table::text(&report), ycsb::lines(&report));
    sink.deliver(&text, &RunJson::of(&report).to_text())
}

fn cache(args: &CacheArgs) -> Result<Exit, CommandError> {
    let plan = args.plan()?;
    let sink = JsonSink::open(args.json.as_deref())?;
    let (url, options) = server(&args.store)?;
    let result = cache::run(&url, &options, &plan)?;
    let json = serde_json::json!({
        "schema": 1,
        "result": result,
        "hit_ratio": result.hit_ratio(),
        "lru_hit_ratio": result.lru_hit_ratio(),
    });
    sink.deliver(&result.text(), &format!("{json:#}"))?;
    let is_within = args.within.is_none_or(|points| result.points_above_lru() >= -points);
    Ok(if is_within { Exit::Done } else { Exit::Refused })
}

fn compare_all(args: &CompareArgs) -> Result<Exit, CommandError> {
    let plan = args.plan()?;
    let sink = JsonSink::open(args.json.as_deref())?;
    match target(&args.store)? {
        Target::Null => Err(UsageError::Null("compare").into()),
        Target::Kv(factory) => compare_with(&factory, args, &plan, sink),
        Target::DashMap => compare_with(&DashMapFactory::default(), args, &plan, sink),
    }
}

fn compare_with<F: Factory>(
    store: &F,
    args: &CompareArgs,
    plan: &ComparePlan,
    sink: JsonSink,
) -> Result<Exit, CommandError> {
    let clock = SystemClock::start();
    let (reads, workload) = (as_run(plan), &plan.workload);
    check_memory("the map and the floor", if store.is_in_process() { 3 } else { 2 }, &reads)?;
    let records = usize::try_from(workload.records).unwrap_or(usize::MAX);
    let peer = DashMapFactory::with_capacity(records);
    run_shown("load dashmap", &peer, &fill(&reads), &clock)?;
    if !args.no_load {
        let loaded = run_shown("load store", store, &fill(&reads), &clock)?;
        if let Some(error) = loaded.tally.fatal {
            return Err(error.into());
        }
    }
    let huge = args.floor_pages == FloorPages::Huge;
    let floor = FloorFactory::new(workload.records, workload.keys, plan.shape.value_bytes(), huge)
        .map_err(CommandError::Floor)?;
    let result = compare::compare((store, ("dashmap", &peer), &floor), plan, &clock, &mut |what| {
        tell(format_args!("compare: {what}"));
    })?;
    let mut facts = store.facts();
    facts.extend(floor.facts());
    let report = CompareReport {
        plan,
        result: &result,
        transport: store.transport(),
        facts,
        null_ns_per_op: null_ns_per_op(&reads, &clock)?,
        skew: skew::measure(workload),
        clock: clock.source(),
    };
    let exit = report.exit();
    sink.deliver(&report.text(), &report.json().to_text())?;
    Ok(if exit == Exit::Done { limits(&report, &args.require) } else { exit })
}

fn raw(args: &RawArgs) -> Result<Exit, CommandError> {
    let tests = raw::plan::tests(args).map_err(RawError::from)?;
    let sink = JsonSink::open(args.json.as_deref())?;
    if let Some(result) = raw::measure(args, &tests)? {
        sink.deliver(&result.table(), &result.to_text())?;
    }
    Ok(Exit::Done)
}

/// Whether all required ratios were reached.
fn limits(report: &CompareReport<'_>, required: &[Required]) -> Exit {
    let mut exit = Exit::Done;
    for Required { peer, serial, ratio } in required {
        let found = report.ratio(peer, *serial).unwrap_or(0.0);
        if found < *ratio {
            let how = if *serial { ", serial," } else { "" };
            tell(format_args!("kv-bench: store / {peer}{how} is {found:.3}, below the required {ratio}"));
            exit = Exit::Refused;
        }
    }
    exit
}
