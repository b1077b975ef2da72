/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of the switch table.  Included by toggles.c, for its static
 * functions; they use switches of their own.
 */

#include <kunit/test.h>
#include <linux/limits.h>

static unsigned long test_applied;
static int test_nr_applied;

static void test_apply(unsigned long value)
{
	lockdep_assert_held(&toggles_mutex);
	test_applied = value;
	test_nr_applied++;
}

static struct faultline_toggle test_toggle;
static struct faultline_toggle test_second;
static struct faultline_toggle *const test_table[] = {
	&test_toggle, &test_second, NULL
};

static int toggles_test_init(struct kunit *test)
{
	test_toggle = (struct faultline_toggle) {
		.name = "test_first", .stock = 1, .max = 100, .value = 1,
		.apply = test_apply,
	};
	test_second = (struct faultline_toggle) {
		.name = "test_second", .min = 2, .stock = 2, .max = ULONG_MAX,
		.value = 2, .apply = test_apply,
	};
	test_applied = ULONG_MAX;
	test_nr_applied = 0;
	return 0;
}

/* Parses @str like a write to the sysctl; -1 means refused. */
static long parse(const char *str)
{
	unsigned long value;

	return toggle_parse(str, strlen(str), &value) ? -1 : (long)value;
}

static void toggles_test_parse(struct kunit *test)
{
	KUNIT_EXPECT_EQ(test, parse("0"), 0);
	KUNIT_EXPECT_EQ(test, parse("65536\n"), 65536);
	KUNIT_EXPECT_EQ(test, parse("  42\n"), 42);
	KUNIT_EXPECT_EQ(test, parse("0x10"), 16);

	KUNIT_EXPECT_EQ(test, parse(""), -1);
	KUNIT_EXPECT_EQ(test, parse("\n"), -1);
	KUNIT_EXPECT_EQ(test, parse("-1"), -1);
	KUNIT_EXPECT_EQ(test, parse("7 8"), -1);
	KUNIT_EXPECT_EQ(test, parse("7k"), -1);
	KUNIT_EXPECT_EQ(test, parse("on"), -1);
	KUNIT_EXPECT_EQ(test, parse("99999999999999999999"), -1);
	KUNIT_EXPECT_EQ(test, parse("000000000000000000000000007"), -1);
}

static void toggles_test_parse_unterminated(struct kunit *test)
{
	unsigned long value;

	KUNIT_EXPECT_EQ(test, toggle_parse("12345", 3, &value), 0);
	KUNIT_EXPECT_EQ(test, value, 123UL);
	KUNIT_EXPECT_EQ(test, toggle_parse("6\0 4", 4, &value), -EINVAL);
	KUNIT_EXPECT_EQ(test, toggle_parse("6\0", 2, &value), -EINVAL);
}

static void toggles_test_set(struct kunit *test)
{
	KUNIT_EXPECT_EQ(test, toggle_set(&test_toggle, 100), 0);
	KUNIT_EXPECT_EQ(test, test_toggle.value, 100UL);
	KUNIT_EXPECT_EQ(test, test_applied, 100UL);
	KUNIT_EXPECT_EQ(test, test_nr_applied, 1);
}

static void toggles_test_set_same(struct kunit *test)
{
	KUNIT_EXPECT_EQ(test, toggle_set(&test_toggle, 1), 0);
	KUNIT_EXPECT_EQ(test, test_nr_applied, 0);
}

static void toggles_test_set_out_of_range(struct kunit *test)
{
	KUNIT_EXPECT_EQ(test, toggle_set(&test_toggle, 101), -EINVAL);
	KUNIT_EXPECT_EQ(test, toggle_set(&test_toggle, ULONG_MAX), -EINVAL);
	KUNIT_EXPECT_EQ(test, test_toggle.value, 1UL);
	KUNIT_EXPECT_EQ(test, toggle_set(&test_second, 1), -EINVAL);
	KUNIT_EXPECT_EQ(test, test_second.value, 2UL);
	KUNIT_EXPECT_EQ(test, test_nr_applied, 0);
}

static void toggles_test_boot(struct kunit *test)
{
	KUNIT_EXPECT_TRUE(test, toggles_boot_off("off"));
}

static void toggles_test_boot_bad(struct kunit *test)
{
	KUNIT_EXPECT_FALSE(test, toggles_boot_off(NULL));
	KUNIT_EXPECT_FALSE(test, toggles_boot_off(""));
	KUNIT_EXPECT_FALSE(test, toggles_boot_off("on"));
	KUNIT_EXPECT_FALSE(test, toggles_boot_off("offline"));
	KUNIT_EXPECT_FALSE(test, toggles_boot_off("off,off"));
	KUNIT_EXPECT_FALSE(test, toggles_boot_off("test_first:7"));
}

/* Every switch that is compiled in can go back to upstream behaviour. */
static void toggles_test_table(struct kunit *test)
{
	size_t i;

	for (i = 0; toggles[i]; i++) {
		KUNIT_EXPECT_NOT_NULL(test, toggles[i]->name);
		KUNIT_EXPECT_NOT_NULL(test, toggles[i]->apply);
		KUNIT_EXPECT_TRUE(test, toggle_valid(toggles[i],
						     toggles[i]->stock));
		KUNIT_EXPECT_TRUE(test, toggle_valid(toggles[i],
						     toggles[i]->value));
	}
}

static struct kunit_case toggles_test_cases[] = {
	KUNIT_CASE(toggles_test_parse),
	KUNIT_CASE(toggles_test_parse_unterminated),
	KUNIT_CASE(toggles_test_set),
	KUNIT_CASE(toggles_test_set_same),
	KUNIT_CASE(toggles_test_set_out_of_range),
	KUNIT_CASE(toggles_test_boot),
	KUNIT_CASE(toggles_test_boot_bad),
	KUNIT_CASE(toggles_test_table),
	{}
};

static struct kunit_suite toggles_test_suite = {
	.name = "faultline-toggles",
	.init = toggles_test_init,
	.test_cases = toggles_test_cases,
};

kunit_test_suite(toggles_test_suite);
