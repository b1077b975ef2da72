/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of hugetlb page table sharing.  Included by hugetlb.c, for its
 * static functions.
 */

#include <kunit/test.h>

static void hugetlb_test_range(struct kunit *test)
{
	const unsigned long p = PUD_SIZE, small = PMD_SIZE;

	KUNIT_EXPECT_TRUE(test, range_has_table(0, p, small));
	KUNIT_EXPECT_TRUE(test, range_has_table(p, 2 * p, small));
	KUNIT_EXPECT_TRUE(test, range_has_table(p - small, 2 * p, small));
	KUNIT_EXPECT_TRUE(test, range_has_table(p + small, 3 * p, small));

	KUNIT_EXPECT_FALSE(test, range_has_table(p, 2 * p - small, small));
	KUNIT_EXPECT_FALSE(test, range_has_table(p + small, 2 * p, small));
	/* Longer than a table, but spans only parts of two. */
	KUNIT_EXPECT_FALSE(test, range_has_table(p + small, 3 * p - small,
						 small));
	KUNIT_EXPECT_FALSE(test, range_has_table(p, p, small));
	/* Only tables of PMD entries are shared. */
	KUNIT_EXPECT_FALSE(test, range_has_table(0, 4 * p, PUD_SIZE));
	KUNIT_EXPECT_FALSE(test, range_has_table(0, 4 * p, PAGE_SIZE));
}

static void hugetlb_test_owner(struct kunit *test)
{
	struct vm_area_struct vma = {};
	struct hugetlb_vma_lock lock;

	/* A private mapping has its reservations or nothing there. */
	KUNIT_EXPECT_FALSE(test, owns_tables(&vma));
	vm_flags_init(&vma, VM_MAYSHARE);
	KUNIT_EXPECT_TRUE(test, owns_tables(&vma));
	vma.vm_private_data = &lock;
	KUNIT_EXPECT_FALSE(test, owns_tables(&vma));
}

static void hugetlb_test_entry(struct kunit *test)
{
	pte_t none = __pte(0), old, young, dirty;

	young = pte_mkyoung(pte_wrprotect(mk_huge_pte(ZERO_PAGE(0),
						      PAGE_SHARED)));
	old = pte_mkold(young);
	dirty = huge_pte_mkwrite(huge_pte_mkdirty(young));

	KUNIT_EXPECT_FALSE(test, entry_suffices(none, 0));
	KUNIT_EXPECT_EQ(test, entry_suffices(old, 0), arch_has_hw_pte_young());
	KUNIT_EXPECT_FALSE(test, entry_suffices(old, FAULT_FLAG_REMOTE));
	KUNIT_EXPECT_TRUE(test, entry_suffices(young, 0));
	KUNIT_EXPECT_TRUE(test, entry_suffices(dirty, 0));
	KUNIT_EXPECT_FALSE(test, entry_suffices(young, FAULT_FLAG_WRITE));
	KUNIT_EXPECT_TRUE(test, entry_suffices(dirty, FAULT_FLAG_WRITE));
	KUNIT_EXPECT_FALSE(test, entry_suffices(pte_mkclean(dirty),
						FAULT_FLAG_WRITE));
	KUNIT_EXPECT_FALSE(test,
			   entry_suffices(make_pte_marker(PTE_MARKER_POISONED),
					  0));
}

static struct kunit_case hugetlb_test_cases[] = {
	KUNIT_CASE(hugetlb_test_range),
	KUNIT_CASE(hugetlb_test_owner),
	KUNIT_CASE(hugetlb_test_entry),
	{}
};

static struct kunit_suite hugetlb_test_suite = {
	.name		= "faultline_hugetlb",
	.test_cases	= hugetlb_test_cases,
};

kunit_test_suite(hugetlb_test_suite);
