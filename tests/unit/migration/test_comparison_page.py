"""A comparison as a page: all names are escaped, and nothing has to be loaded."""

from frazil.migration.comparison_page import write_page
from frazil.migration.messages import (
    ColumnReport,
    Comparison,
    PartitionReport,
    Samples,
    SideReport,
)

NAME = "<script>alert(1)</script>"


def make_comparison(offsets: tuple[str, ...] = ()) -> Comparison:
    side = SideReport(
        name="legacy.orders",
        table="legacy.orders",
        writer="Kafka Connect",
        snapshot_id=7,
        rows=3,
        unplaced=0,
        partitioned_by=(f"identity({NAME})",),
        newest_event_at=None,
        newest_commit_at=None,
    )
    column = ColumnReport(
        name=NAME, left=None, right="string", compared=False, note="", is_difference=True
    )
    report = PartitionReport(
        topic="orders",
        partition=3,
        judged=(0, 5),
        matched=4,
        changed=1,
        changed_columns=(NAME,),
        samples=Samples(doubled_right=(17,)),
    )
    return Comparison(
        left=side,
        right=side,
        verdict="different",
        rows_only=False,
        offsets=offsets,
        layout=(f"column {NAME}: only on the right: string",),
        columns=(column,),
        partitions=(report,),
        text="4 records",
    )


def test_every_name_is_escaped() -> None:
    page = write_page(make_comparison())

    assert "<script>" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 4
    assert "http" not in page.replace("http-equiv", ""), "one file, nothing to load"


def test_the_page_shows_verdict_ranges_and_samples() -> None:
    page = write_page(make_comparison(("orders:3:0-5",)))

    assert '<p class="verdict different">different</p>' in page
    assert page.count("orders:3") == 3
    assert "orders:3:0-5" in page
    assert "over the offsets that were requested" in page
    assert "duplicates right" in page
    assert "17" in page
