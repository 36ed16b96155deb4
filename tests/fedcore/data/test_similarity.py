"""Silos by similarity: each silo's images, against a deal of single images by a plain loop."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.data.constants.pca import PcaConfig
from fedcore.data.dataset import facts, prepare
from fedcore.data.silo_file import open_records
from fedcore.data.sources.generators import DIGIT_CLASS_COUNTS, similar_digits
from fedcore.data.sources.images import DigitsData, MnistData
from fedcore.data.sources.similarity import Shares, SimilarityConfig, deal, divide, shares
from fedcore.data.sources.streams import stream
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.statistics_run import StatisticsRun
from fedcore.models.model_config import ModelConfig

MODEL = ModelConfig.model_validate({"loss": {"name": "softmax"}, "bias": False, "feature_bound": 100.0})
ALIKE = {"split": "similarity", "labels": "digit"}


def by_loop(counts, sizes, gamma, rest, seed):
    """Deals single images (class, number) from piles, as in spec 7.2 and 7.3, with the draws of the tested code."""
    piles = [[(k, number) for number in range(count)] for k, count in enumerate(counts)]
    hands = [[] for _ in sizes]
    for i, size in enumerate(sizes):
        rng = stream(seed, 107, i)
        for k in rng.integers(0, len(counts), int(gamma * size + 1e-9)):
            while not piles[k]:
                k = (k + 1) % len(counts)
            hands[i].append(piles[k].pop(0))
    left = [card for pile in piles for card in pile]  # sorted by label
    for i, size in enumerate(sizes):
        missing = size - len(hands[i])
        own = left if rest == "sorted-blocks" else [card for card in left if card[0] == i % len(counts)]
        hands[i] += (block := own[:missing])
        left = [card for card in left if card not in block]
    return hands


@settings(max_examples=80)
@given(
    st.lists(st.integers(0, 30), min_size=2, max_size=6).filter(lambda counts: sum(counts) >= 4),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.1, 0.29, 0.5, 1.0]),
    st.sampled_from(["one-class", "sorted-blocks"]),
    st.integers(0, 2**40),
    st.booleans(),
)
def test_a_deal_is_that_of_a_plain_loop_over_images(counts, silos, gamma, rest, seed, everything):
    total = sum(counts)
    sizes = [total // silos + (i < total % silos) for i in range(silos)] if everything else [total // silos] * silos
    dealt = deal(np.array(counts), sizes, gamma, rest, seed)
    hands = by_loop(counts, sizes, gamma, rest, seed)
    for row, hand in zip(dealt.tolist(), hands, strict=True):
        held = Counter(k for k, _ in hand)
        assert row == [held[k] for k in range(len(counts))]
    cards = [card for hand in hands for card in hand]
    assert len(set(cards)) == len(cards)
    assert (dealt.sum(axis=0) <= counts).all() and (dealt.sum(axis=1) <= sizes).all()
    if rest == "sorted-blocks" or gamma == 1.0:
        assert dealt.sum(axis=1).tolist() == sizes


def test_no_similarity_one_class_each_and_who_comes_too_late_gets_less():
    dealt = deal(np.array([10, 6, 9]), [5, 5, 5, 5, 5], 0.0, "one-class", 0)
    assert dealt.tolist() == [[5, 0, 0], [0, 5, 0], [0, 0, 5], [5, 0, 0], [0, 1, 0]]


def test_no_similarity_contiguous_blocks_of_the_sorted_images():
    dealt = deal(np.array([4, 7, 4]), [5, 5, 5], 0.0, "sorted-blocks", 0)
    assert dealt.tolist() == [[4, 1, 0], [0, 5, 0], [0, 1, 4]]


def test_full_similarity_is_uniform_over_classes():
    """Draws are over classes, not images, so a rare class has the same chance; sd sqrt(n p (1 - p))."""
    dealt = deal(np.array([40_000, 9_000, 20_000]), [8_000, 8_000], 1.0, "one-class", 3)
    assert np.abs(dealt - 8_000 / 3).max() < 5 * np.sqrt(8_000 * 2 / 9)
    assert dealt[0].tolist() != dealt[1].tolist()


def test_an_exhausted_class_gives_way_to_the_next_one():
    dealt = deal(np.array([0, 5, 0, 100]), [60], 1.0, "one-class", 1)
    assert dealt.tolist() == [[0, 5, 0, 55]]
    assert deal(np.array([50, 0]), [30], 1.0, "one-class", 1).tolist() == [[30, 0]]  # round the corner


def test_a_part_of_the_images_is_counted_exactly():
    """0.29 * 100 is 28.999999999999996 in binary: still 29 draws, of which some are of class 1, and 71 of class 0."""
    assert int(0.29 * 100) == 28
    for seed in range(8):
        drawn = stream(seed, 107, 0).integers(0, 2, 29)
        dealt = deal(np.array([500, 500]), [100], 0.29, "one-class", seed)
        assert dealt.tolist() == [[100 - drawn.sum(), drawn.sum()]]


def test_a_tenth_of_the_paper_s_emnist_leaves_users_a_little_short():
    """40 users of 2,500 images from 47 classes of 2,400.

    At gamma = 0 each user has 2,400 images of one class, and classes 40 to 46 never occur. At 10 % a user has 250 drawn
    images. The rest are of its class after the others' draws: 2,400 - 213 images in the mean.
    """
    counts, how = [2400] * 47, SimilarityConfig(silos=40, records=2500, gamma=0.0)
    users = shares(counts, how, 0.2, 0).users
    assert users.sum(axis=1).tolist() == [2400] * 40 and users[:, 40:].sum() == 0
    assert [int(row.argmax()) for row in users] == list(range(40))
    sizes = shares(counts, how.model_copy(update={"gamma": 0.1}), 0.2, 0).users.sum(axis=1)
    assert np.abs(sizes - (250 + 2400 - 10_000 / 47)).max() < 5 * np.sqrt(10_000 / 47) and sizes.max() <= 2500
    assert shares(counts, how.model_copy(update={"gamma": 1.0}), 0.2, 0).test.tolist() == [500] * 40


@settings(max_examples=25)
@given(
    st.floats(0, 1),
    st.sampled_from(["one-class", "sorted-blocks"]),
    st.integers(1, 30),
    st.one_of(st.none(), st.integers(40, 55)),
    st.floats(0.05, 0.5),
    st.integers(0, 2**40),
    st.sampled_from([0.0, 0.1]),
)
def test_images_are_divided_as_the_shares_say_and_each_is_in_one_place(gamma, rest, silos, records, test, seed, public):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 180))
    how = SimilarityConfig(silos=silos, records=records, gamma=gamma, rest=rest)
    share = shares([180] * 10, how, test, seed, public)
    made = divide(labels, share, seed)
    assert {name: len(rows) for name, rows in made.silos.items()} == share.silo_sizes()
    parts = [*made.silos.values(), made.test, made.public]
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows) and all((np.diff(part) > 0).all() for part in parts)
    assert np.bincount(labels[made.public], minlength=10).tolist() == list(share.public) == [int(180 * public)] * 10
    dealt = share.users.sum(axis=1).tolist()
    assert share.test.tolist() == [round(test * n) for n in dealt] and len(made.test) == share.test.sum()
    held = sum(np.bincount(labels[part], minlength=10) for part in parts[:-1])
    assert held.tolist() == share.users.sum(axis=0).tolist()
    for row, part in zip(share.users, made.silos.values(), strict=True):
        assert (np.bincount(labels[part], minlength=10) <= row).all()


def test_which_images_are_test_images_is_random_within_a_user_and_follows_the_seed():
    labels = np.repeat([0, 1], 500)
    share = Shares(np.array([[500, 0], [0, 500]]), np.array([100, 100]), (0, 0))
    made, again, other = (divide(labels, share, seed) for seed in (4, 4, 5))
    assert (labels[made.test] == 0).sum() == 100
    assert made.test.tolist() == again.test.tolist() != other.test.tolist()
    first = made.test[made.test < 500]
    assert first.mean() == pytest.approx(249.5, abs=5 * np.sqrt(500**2 / 12 / 100))
    assert set(first.tolist()) | set(made.silos["silo-000"].tolist()) == set(range(500))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"records": 90}, r"records = 90 for data\.similarity\.silos = 20 are 1800 images, but there are 1797; .* 89,"),
        ({"silos": 800}, r"silo silo-\d+ gets \d images and trains on \d, .* each silo needs 2 to train on"),
    ],
)
def test_more_than_there_is_is_refused(changes, words):
    how = SimilarityConfig(**changes)
    with pytest.raises(InputError, match=words):
        shares(DIGIT_CLASS_COUNTS, how, 0.2, 0)


@pytest.mark.parametrize(("classes", "kind"), [(10, "digit"), (47, "class")])
def test_more_images_of_a_class_than_there_are_are_refused(classes, kind):
    counts = [50] * classes
    counts[7] = 20
    with pytest.raises(InputError, match=rf"data\.per_digit = 21, but there are 20 images of {kind} 7; .* at most 20"):
        shares(counts, SimilarityConfig(), 0.2, 0, per_class=21)
    assert shares(counts, SimilarityConfig(silos=5), 0.2, 0, per_class=20).users.sum(axis=0).max() <= 20


def test_two_images_to_train_on_and_one_to_test_are_enough():
    how = SimilarityConfig(records=3)
    assert set(shares(DIGIT_CLASS_COUNTS, how, 0.2, 0).silo_sizes().values()) == {2}
    with pytest.raises(InputError, match="trains on 3, and 0 of all silos' become test data"):
        shares(DIGIT_CLASS_COUNTS, how, 0.1, 0)


def test_a_silo_whose_class_ran_out_is_told():
    with pytest.raises(InputError, match=r"silo silo-003 gets 0 images and trains on 0, .* in which no class runs out"):
        shares([6, 20, 20], SimilarityConfig(silos=4, records=6, gamma=0.0), 0.2, 0)


def test_the_default_for_scikit_learn_s_digits():
    """1,797 images to 20 silos, 9 of each i.i.d. but for rounding: 89 or 90 each unless a class runs out."""
    made = similar_digits(SimilarityConfig(), 0.2, 0)
    sizes = {name: len(table.labels) for name, table in made.silos.items()}
    assert sizes == shares(DIGIT_CLASS_COUNTS, SimilarityConfig(), 0.2, 0).silo_sizes()
    assert len(sizes) == 20 and min(sizes.values()) >= 60 and max(sizes.values()) <= 72
    assert sum(sizes.values()) + len(made.test.labels) >= 0.97 * 1797
    for i, table in enumerate(made.silos.values()):
        assert (table.labels == i % 10).mean() > 0.7
    assert made.label == "class" and not made.test.more
    images = [row.tobytes() for table in (*made.silos.values(), made.test) for row in table.features]
    assert len(set(images)) == len(images)


@pytest.mark.parametrize("pca", [None, PcaConfig(dimension=9), PcaConfig(dimension=9, constants="simulation")])
def test_planning_and_running_agree_for_digits(tmp_path, pca):
    data = DigitsData(**ALIKE, similarity={"gamma": 0.5, "silos": 7}, pca=pca)
    planned, dim = facts(data, MODEL, 3)
    ready = prepare(data, MODEL, 3, tmp_path)
    assert (ready.facts, ready.dim) == (planned, dim)
    for source, fact in zip(ready.sources, planned, strict=True):
        records = open_records(source)
        assert records.n == fact.n and set(records.y) <= set(range(10))
    from sklearn.datasets import load_digits

    if pca is None:
        known = {(row / 16.0).tobytes(): k for row, k in zip(*load_digits(return_X_y=True), strict=True)}
        for part in (*map(open_records, ready.sources), ready.test):
            assert [known[row.tobytes()] for row in part.X] == part.y.tolist()
    other = prepare(data.model_copy(update={"similarity": SimilarityConfig(gamma=0.4, silos=7)}), MODEL, 3, tmp_path)
    assert other.name != ready.name != prepare(DigitsData(), MODEL, 3, tmp_path).name
    assert facts(data, MODEL, 3)[0] == planned != facts(data, MODEL, 4)[0]  # the seed draws classes


def test_planning_and_running_agree_for_a_folder_and_no_image_is_read_for_sizes(tmp_path, images, idx, monkeypatch):
    folder = images(tmp_path / "images", per_digit=12)
    data = MnistData(folder=folder, per_digit=11, **ALIKE, similarity={"silos": 4, "records": 20, "gamma": 0.25})
    ready = prepare(data, MODEL, 0, tmp_path / "silos")
    monkeypatch.setattr("fedcore.data.sources.generators.load_images", None)
    assert facts(data, MODEL, 0) == (ready.facts, ready.dim)
    pixels = [row for part in (*map(open_records, ready.sources), ready.test) for row in part.X * 255]
    labels = [y for part in (*map(open_records, ready.sources), ready.test) for y in part.y]
    numbers = [round(row[0]) for row in pixels]  # the first two pixels number the image, whose digit is its last figure
    assert len(set(numbers)) == len(numbers) and [number % 10 for number in numbers] == labels


def test_released_constants_are_of_these_silos(tmp_path):
    config = ExperimentConfig.model_validate(
        {
            "data": {"source": "digits", **ALIKE, "pca": {"constants": "released", "epsilon": 1, "dimension": 3}},
            "model": {"loss": {"name": "softmax"}},
            "privacy": {"epsilon": 1},
            "algorithm": {"name": "mbsgd"},
        }
    )
    run = StatisticsRun.prepare(config, tmp_path / "silos")
    odd_even = config.model_copy(update={"data": DigitsData(labels="digit", pca=config.data.pca)})
    assert len(run.dataset.sources) == 20 and run.run != StatisticsRun.prepare(odd_even, tmp_path / "silos").run
