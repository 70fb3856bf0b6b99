//! Every scenario over every transport: what a user sees of the store, whatever carries it.
//!
//! A scenario is a function that starts a server and uses the client library. The table below is the one list of them;
//! each module behind it is one transport.

#[path = "../live/mod.rs"]
mod live;

mod basics;
mod batches;
mod full;
mod reads;
mod shared;
mod sizes;

macro_rules! scenarios {
    ($start:path) => {
        scenarios! { $start,
            basics: put_get_update_delete, compare_and_set_in_all_its_outcomes, empty_values_are_values,
                keys_have_any_bytes, keys_beyond_the_limits_are_refused, versions_rise, timeouts_have_any_length;
            sizes: values_of_every_class, values_at_the_limits_of_messages, values_beyond_the_limit_are_refused;
            batches: multi_get_has_a_result_per_key, submitted_operations_complete_once,
                reads_come_behind_own_writes, writes_of_one_key_keep_their_order, too_many_operations_are_refused;
            reads: warm_gets_take_one_read_and_cold_ones_two, hits_and_misses_are_counted;
            shared: clients_see_each_others_writes, increments_by_compare_and_set_are_never_lost,
                readers_of_a_key_under_fire_get_whole_values;
            full: a_full_region_is_named_and_loses_nothing, a_full_index_is_named_and_loses_nothing;
        }
    };
    ($start:path, $($file:ident: $($scenario:ident),+;)+) => {
        $($(
            #[test]
            fn $scenario() {
                crate::$file::$scenario($start);
            }
        )+)+
    };
}

mod shm_in_process {
    scenarios!(crate::live::server::shm_in_process);
}

mod shm_process {
    scenarios!(crate::live::server::shm_process);
}
