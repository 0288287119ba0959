"""Cases of the ops of classical models, of the domain `ai.onnx.ml`."""

import numpy as np
from contrib_case import Contrib
from onnx import MapProto, TensorProto, helper, numpy_helper

DOMAIN = "ai.onnx.ml"
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]


def numbers(draw, count, scale=1.0):
    return [float(v) for v in np.float32(draw.standard_normal(count) * scale)]


WORDS = ["", "a", "b", "ab", "ba", "Ä", "a b", "naïve", "東京", "ab" * 20]


def words(draw):
    """Values that are words, some of which no table of `draw`'s has."""
    return lambda shape, _: draw.choice(np.array(WORDS, object), shape)


def some_words(draw, least=1):
    return [str(word) for word in draw.permutation(WORDS)[: draw.integers(least, len(WORDS))]]


def on_rows(draw, op, columns, outputs=1, values=None, dtype=np.float32, **attributes):
    """A case of an op on rows of features."""
    case = Contrib(draw, op, outputs, domain=DOMAIN, **attributes).symbol("n", 1, 6)
    return case.input(["n", columns], dtype, values)


def scale(draw):
    columns = int(draw.integers(1, 6))
    count = columns if draw.random() < 0.7 else 1
    return on_rows(draw, "Scaler", columns, offset=numbers(draw, count), scale=numbers(draw, count))


def normalise(draw):
    return on_rows(draw, "Normalizer", int(draw.integers(1, 6)), norm=str(draw.choice(["MAX", "L1", "L2"])))


def binarise(draw):
    return on_rows(draw, "Binarizer", 4, threshold=float(np.float32(draw.uniform(-1, 1))))


def impute(draw):
    columns, gap = int(draw.integers(1, 5)), float(draw.choice([np.nan, 0.0, -1.0]))
    count = columns if draw.random() < 0.7 else 1
    values = np.array([gap, 1.5, -2.25, 3.0], np.float32)
    return on_rows(
        draw, "Imputer", columns, values=lambda shape, _: draw.choice(values, shape),
        imputed_value_floats=numbers(draw, count), replaced_value_float=gap,
    )


def one_hot(draw):
    categories = [int(v) for v in draw.permutation(9)[: draw.integers(1, 6)]]
    known = np.array(categories if draw.random() < 0.5 else range(9), np.int64)
    return on_rows(
        draw, "OneHotEncoder", 2, values=lambda shape, _: draw.choice(known, shape), dtype=np.int64,
        cats_int64s=categories, zeros=1,
    )


def one_hot_words(draw):
    categories = some_words(draw)
    return on_rows(draw, "OneHotEncoder", 2, values=words(draw), dtype=object, cats_strings=categories, zeros=1)


def by_category(draw):
    categories = some_words(draw)
    numbers = [int(v) for v in draw.permutation(15)[: len(categories)]]
    attributes = {"cats_strings": categories, "cats_int64s": numbers, "default_int64": -7, "default_string": "none"}
    if draw.random() < 0.5:
        return on_rows(draw, "CategoryMapper", 3, values=words(draw), dtype=object, **attributes)
    values = lambda shape, _: draw.integers(0, 15, shape)
    return on_rows(draw, "CategoryMapper", 3, values=values, dtype=np.int64, **attributes)


def by_label(draw):
    """A table from words, integers or floats to words, integers or floats."""
    keys = some_words(draw)
    count, version = len(keys), int(draw.choice([2, 4]))
    integers, halves = np.arange(12), np.array([np.nan, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0], np.float32)
    # ONNX compares keys bit by bit. ONNX Runtime finds no NaN in the older version.
    halves = halves if version == 4 else halves[1:]
    columns = {
        "strings": (object, words(draw), keys, "none"),
        "int64s": (np.int64, lambda shape, _: draw.choice(integers, shape), draw.permutation(integers)[:count].tolist(), -7),
        "floats": (np.float32, lambda shape, _: draw.choice(halves, shape), draw.permutation(halves)[:count].tolist(), 0.25),
    }
    # ONNX Runtime has no kernel from integers to integers.
    pairs = [(a, b) for a in columns for b in columns if (a, b) != ("int64s", "int64s")]
    source, target = pairs[draw.integers(len(pairs))]
    dtype, values, listed, _ = columns[source]
    _, _, results, default = columns[target]
    attributes = {f"keys_{source}": listed, f"values_{target}": results}
    attributes |= {"default_" + {"strings": "string", "int64s": "int64", "floats": "float"}[target]: default}
    case = on_rows(draw, "LabelEncoder", 3, values=values, dtype=dtype, **attributes)
    case.domain_opset = version
    return case


def of_words(draw):
    """A classifier whose classes are words."""
    columns, classes = int(draw.integers(1, 6)), some_words(draw, 3)
    if draw.random() < 0.5:
        return on_rows(
            draw, "LinearClassifier", columns, 2, coefficients=numbers(draw, columns * len(classes)),
            intercepts=numbers(draw, len(classes)), classlabels_strings=classes, post_transform=str(draw.choice(TRANSFORMS)),
        )
    return on_rows(
        draw, "TreeEnsembleClassifier", columns, 2, post_transform=str(draw.choice(TRANSFORMS)), classlabels_strings=classes,
        **Forest(draw, columns, len(classes), "class").attributes(),
    )


def join(draw):
    first, second = int(draw.integers(1, 4)), int(draw.integers(1, 4))
    case = on_rows(draw, "FeatureVectorizer", first, inputdimensions=[first, second])
    return case.input(["n", second], np.float32)


def linear(draw):
    columns, targets = int(draw.integers(1, 6)), int(draw.integers(1, 4))
    if draw.random() < 0.5:
        return on_rows(
            draw, "LinearRegressor", columns, targets=targets, coefficients=numbers(draw, columns * targets),
            intercepts=numbers(draw, targets), post_transform="NONE",
        )
    classes = int(draw.integers(3, 6))
    return on_rows(
        draw, "LinearClassifier", columns, 2, coefficients=numbers(draw, columns * classes),
        intercepts=numbers(draw, classes), classlabels_ints=[int(v) for v in draw.permutation(20)[:classes]],
        post_transform=str(draw.choice(TRANSFORMS)),
    )


def support_vectors(draw):
    columns, count = int(draw.integers(1, 5)), int(draw.integers(1, 6))
    gamma, offset, degree = float(np.float32(draw.uniform(0.1, 0.5))), float(np.float32(draw.uniform(0, 1))), 3.0
    return on_rows(
        draw, "SVMRegressor", columns, kernel_type=str(draw.choice(["LINEAR", "POLY", "RBF", "SIGMOID"])),
        support_vectors=numbers(draw, columns * count), coefficients=numbers(draw, count), rho=numbers(draw, 1),
        kernel_params=[gamma, offset, degree], n_supports=count,
    )


def pairs_of_classes(draw):
    """A classifier by support vectors: scores of pairs of classes, or the probabilities that are coupled from them."""
    columns, classes = int(draw.integers(1, 5)), int(draw.integers(2, 5))
    by_class = [int(v) for v in draw.integers(1, 4, classes)]
    count, pairs = sum(by_class), classes * (classes - 1) // 2
    # Coefficients of one sign only mean something else where there is a single score.
    coefficients = [-0.5, *numbers(draw, (classes - 1) * count)[1:]]
    likely = {}
    if draw.random() < 0.6:
        slopes = [float(np.float32(v)) for v in draw.uniform(-3, -0.5, pairs)]
        likely = {"prob_a": slopes, "prob_b": numbers(draw, pairs)}
    return on_rows(
        draw, "SVMClassifier", columns, 2, kernel_type=str(draw.choice(["LINEAR", "POLY", "RBF", "SIGMOID"])),
        kernel_params=[0.25, 0.5, 3.0], support_vectors=numbers(draw, columns * count), coefficients=coefficients,
        rho=numbers(draw, pairs), vectors_per_class=by_class, post_transform="NONE",
        classlabels_ints=[int(v) for v in draw.permutation(20)[:classes]], **likely,
    )


def without_vectors(draw):
    """A support vector machine whose coefficients are those of the features."""
    columns, classes = int(draw.integers(1, 5)), int(draw.integers(1, 5))
    # ONNX Runtime reads these parameters, whatever the kernel.
    attributes = {"kernel_type": str(draw.choice(["LINEAR", "LINEAR", "RBF"])), "kernel_params": [0.25, 0.5, 3.0]}
    if draw.random() < 0.5:
        return on_rows(
            draw, "SVMRegressor", columns, coefficients=numbers(draw, columns), rho=numbers(draw, 1), n_supports=0,
            one_class=int(draw.integers(0, 2)), post_transform=str(draw.choice(TRANSFORMS)), **attributes,
        )
    coefficients = np.array(numbers(draw, columns * classes))
    if draw.random() < 0.3:
        coefficients = abs(coefficients)
    labels = {"classlabels_ints": [int(v) for v in draw.permutation(20)[:classes]]}
    if draw.random() < 0.3:
        labels = {"classlabels_strings": [str(word) for word in draw.permutation(WORDS)[:classes]]}
    if draw.random() < 0.3:
        pairs = max(classes * (classes - 1) // 2, 1)
        attributes |= {"prob_a": numbers(draw, pairs), "prob_b": numbers(draw, pairs)}
    return on_rows(
        draw, "SVMClassifier", columns, 2, coefficients=coefficients.tolist(), rho=numbers(draw, int(draw.integers(1, 3))),
        post_transform=str(draw.choice(TRANSFORMS)), **labels, **attributes,
    )


class OfMap(Contrib):
    """A case of an op that reads a map from `keys`, a type of ONNX, to floats. Python gives ONNX Runtime no other maps."""

    def __init__(self, draw, op, keys, known, **attributes):
        super().__init__(draw, op, domain=DOMAIN, **attributes)
        self.keys = keys

        def some(*_):
            chosen = draw.permutation(np.array(known, object))[: draw.integers(1, len(known) + 1)].tolist()
            values = [np.array(value, np.float32) for value in numbers(draw, len(chosen), 5.0)]
            map = MapProto(key_type=keys, values=numpy_helper.from_list(values))
            # The library's own conversion takes words for names of dtypes.
            if keys == TensorProto.STRING:
                map.string_keys.extend(key.encode() for key in chosen)
            else:
                map.keys.extend(chosen)
            return map

        self.input([], np.float32, some)

    def model(self, outputs=None):
        model = super().model(outputs)
        of = helper.make_map_type_proto(self.keys, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
        model.graph.input[0].type.CopyFrom(of)
        return model

    def results(self, inputs):
        return super().results({name: self.read_map(map) for name, map in inputs.items()})

    @staticmethod
    def read_map(map):
        values = [numpy_helper.to_array(value).item() for value in map.values.tensor_values]
        return dict(zip([*map.keys, *(key.decode() for key in map.string_keys)], values))


def cast_map(draw):
    # TO_STRING is left out: ONNX Runtime writes numbers with another count of digits than Convoke.
    attributes = {"cast_to": str(draw.choice(["TO_FLOAT", "TO_INT64"]))}
    keys = list(range(-4, 8))
    if draw.random() < 0.5:
        attributes |= {"map_form": "SPARSE", "max_map": int(draw.integers(1, 10))}
        keys = list(range(12))
    return OfMap(draw, "CastMap", TensorProto.INT64, keys, **attributes)


def by_vocabulary(draw):
    if draw.random() < 0.5:
        # A word may be in a vocabulary more than once.
        vocabulary = [str(word) for word in draw.choice(np.array(WORDS, object), draw.integers(1, 12))]
        return OfMap(draw, "DictVectorizer", TensorProto.STRING, WORDS, string_vocabulary=vocabulary)
    vocabulary = [int(v) for v in draw.integers(-4, 8, draw.integers(1, 12))]
    return OfMap(draw, "DictVectorizer", TensorProto.INT64, list(range(-4, 8)), int64_vocabulary=vocabulary)


class Forest:
    """Random trees, as the parallel lists of attributes that ONNX has for them."""

    def __init__(self, draw, columns, results, leaf):
        self.draw, self.columns, self.results, self.leaf = draw, columns, results, leaf
        self.nodes = {
            name: []
            for name in "treeids nodeids featureids modes values truenodeids falsenodeids missing_value_tracks_true".split()
        }
        self.leaves = {name: [] for name in "treeids nodeids ids weights".split()}
        for tree in range(int(draw.integers(1, 4))):
            self.count = 0
            self.grow(tree, int(draw.integers(0, 4)))

    def grow(self, tree, depth):
        """Adds a node with all below it, and returns its number."""
        number, draw = self.count, self.draw
        self.count += 1
        place = len(self.nodes["modes"])
        for values in self.nodes.values():
            values.append(0)
        self.set(place, treeids=tree, nodeids=number, modes="LEAF", values=0.0)
        if depth == 0:
            for result in range(self.results):
                for name, value in zip(self.leaves, (tree, number, result, numbers(draw, 1)[0])):
                    self.leaves[name].append(value)
            return number
        modes = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
        self.set(
            place, modes=str(draw.choice(modes)), featureids=int(draw.integers(0, self.columns)),
            values=float(draw.integers(-2, 3)) / 2, missing_value_tracks_true=int(draw.integers(0, 2)),
        )
        self.set(place, truenodeids=self.grow(tree, depth - 1), falsenodeids=self.grow(tree, depth - 1))
        return number

    def set(self, place, **values):
        for name, value in values.items():
            self.nodes[name][place] = value

    def attributes(self):
        nodes = {f"nodes_{name}": values for name, values in self.nodes.items()}
        return nodes | {f"{self.leaf}_{name}": values for name, values in self.leaves.items()}


def trees(draw):
    columns = int(draw.integers(1, 5))
    # Halves meet the thresholds, and NaN stands for what is missing.
    values = np.array([np.nan, -1, -0.5, 0, 0.5, 1, 3], np.float32)
    rows = lambda shape, _: draw.choice(values, shape)
    if draw.random() < 0.5:
        targets = int(draw.integers(1, 4))
        return on_rows(
            draw, "TreeEnsembleRegressor", columns, values=rows, n_targets=targets,
            aggregate_function=str(draw.choice(["SUM", "AVERAGE", "MIN", "MAX"])), base_values=numbers(draw, targets),
            **Forest(draw, columns, targets, "target").attributes(),
        )
    classes = int(draw.integers(3, 6))
    return on_rows(
        draw, "TreeEnsembleClassifier", columns, 2, values=rows, post_transform=str(draw.choice(TRANSFORMS)),
        classlabels_int64s=[int(v) for v in draw.permutation(20)[:classes]],
        **Forest(draw, columns, classes, "class").attributes(),
    )


FAMILIES = {
    "scale": (scale, 10), "normalise": (normalise, 10), "binarise": (binarise, 3), "impute": (impute, 12),
    "one_hot": (one_hot, 8), "join": (join, 5), "linear": (linear, 25), "support_vectors": (support_vectors, 15),
    "without_vectors": (without_vectors, 40),
    "pairs_of_classes": (pairs_of_classes, 20), "trees": (trees, 40), "one_hot_words": (one_hot_words, 8),
    "by_category": (by_category, 10), "by_label": (by_label, 30), "of_words": (of_words, 16),
    "cast_map": (cast_map, 12), "by_vocabulary": (by_vocabulary, 12),
}
