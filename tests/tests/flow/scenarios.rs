//! The one list of scenarios, and that of long ones. What follows it in the table's invocation is a condition under which they are tests.

macro_rules! scenarios {
    ($start:path $(, #[$condition:meta])?) => {
        scenarios! { $start, [$(#[$condition])?]
            basics: put_get_update_delete, compare_and_set_in_all_its_outcomes, empty_values_are_values,
                keys_have_any_bytes, keys_beyond_the_limits_are_refused, versions_rise, timeouts_have_any_length;
            sizes: values_of_every_class, values_at_the_limits_of_messages, values_beyond_the_limit_are_refused;
            large: the_largest_value_of_the_default, large_values_under_conditions, appends_to_large_values,
                many_large_values_at_once, readers_of_large_values_under_fire, large_values_end_and_are_touched;
            conditions: puts_under_every_condition, deletes_under_every_condition,
                adds_count_and_refuse_what_is_no_counter, appends_make_longer_values;
            expiry: keys_end_and_count_as_absent, touches_move_the_end, times_to_live_out_of_range_are_refused;
            batches: multi_get_has_a_result_per_key, multi_put_and_multi_delete_have_a_result_per_key, submitted_operations_complete_once,
                reads_come_behind_own_writes, writes_of_one_key_keep_their_order, too_many_operations_are_refused;
            reads: warm_gets_take_one_read_and_cold_ones_two, hits_and_misses_are_counted,
                gets_by_the_server_read_nothing;
            registered: values_stay_where_they_were_read, values_beyond_registered_memory_are_copied_or_refused,
                submitted_gets_bring_their_memory_back;
            shared: clients_see_each_others_writes, increments_by_compare_and_set_are_never_lost,
                adds_and_appends_of_many_are_never_lost,
                readers_of_a_key_under_fire_get_whole_values;
            full: a_full_region_is_named_and_loses_nothing;
            scan: scans_see_all_keys_and_clears_leave_none;
        }
    };
    ($start:path, $conditions:tt $($file:ident: $($scenario:ident),+;)+) => {
        $($(scenarios! { @test $start, $conditions $file $scenario })+)+
    };
    (@test $start:path, [$($condition:tt)*] $file:ident $scenario:ident) => {
        #[test]
        $($condition)*
        fn $scenario() {
            crate::$file::$scenario($start);
        }
    };
}

/// Those that write or read so much that a guest takes long for each.
macro_rules! long_scenarios {
    ($start:path $(, #[$condition:meta])?) => {
        scenarios! { $start, [$(#[$condition])?]
            cache: keys_in_use_stay_and_no_write_is_refused, large_values_make_room_for_large_values;
            large: values_around_every_limit, a_region_without_a_long_run_says_so;
            space: deleted_values_make_room_for_other_sizes;
            check: a_table_is_sound_after_all_kinds_of_writes, a_check_finds_nothing_while_writers_go_on;
            full: a_full_index_is_named_and_loses_nothing;
            growth: an_index_grows_and_no_reader_misses_a_key;
        }
    };
}
