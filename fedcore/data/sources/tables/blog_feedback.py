"""Comments on a blog post within a day, by 280 attributes: 60,021 posts.

Source: Buza 2014, "Feedback prediction for blogs" (UCI, CC BY 4.0). It is published as a training file and one file for
each day of the test; here all are one table.

Columns have no names and are described by their place, from 1. The paper does not specify the scaling of columns that
are nearly always 0, so this rule is our choice. Counts and lengths become logarithms, so that one post with hundreds of
comments does not make all others alike. Flags (words, days of the week) stay unchanged.
"""

from __future__ import annotations

from fedcore.data.schema import Column
from fedcore.data.sources.tables.description import Description, FileLayout, counts, flag


def _among(place: int, *ranges: tuple[int, int]) -> bool:
    return any(first <= place <= last for first, last in ranges)


def _column(place: int) -> Column:
    """The column at a place, from 1.

    1 to 50: mean, deviation, least, largest and median of each of 51 to 60 over the blog's posts. 51 to 54 count
    comments, and 55 is a difference of two such counts; 56 to 60 are the same for links.
    """
    name = f"x{place:03d}"
    if _among(place, (21, 25), (55, 55)):  # differences of comments, which may be negative
        return Column(name=name, centre=0, scale=50, limit=5)
    if _among(place, (46, 50), (60, 60)):  # of links
        return Column(name=name, centre=0, scale=2, limit=5)
    if _among(place, (1, 20), (51, 54)):  # comments
        return counts(name, 9, 5, 3)
    if _among(place, (26, 45), (56, 59)):  # links
        return counts(name, 0, 3, 3)
    if place == 61:  # hours since the post, up to 72
        return Column(name=name, centre=36, scale=20, limit=2)
    if place == 62:  # length of the post
        return counts(name, 100, 20, 3)
    if _among(place, (63, 276)):  # 200 words, day of the week now and of the post
        return flag(name)
    return counts(name, 0, 3, 3)  # posts that this one follows, and least, largest and mean comments of theirs


_SCHEMA = tuple(_column(place) for place in range(1, 281))

BLOG_FEEDBACK = Description(
    label="comments",
    label_range=(-1500.0, 1500.0),  # symmetric, so a model of zeros predicts 0, as in the paper
    schema=_SCHEMA,
    layouts=(
        FileLayout(
            patterns=("blogData_train.csv", "blogData_test*.csv"),
            columns=(*(column.name for column in _SCHEMA), "comments"),
        ),
    ),
)
