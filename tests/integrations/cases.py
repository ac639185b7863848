"""Terms that the tests of plain loops share."""

import penalties as pn

L2 = pn.Term(pn.l2, weight=0.01, inputs="prediction")
L1 = pn.Term(pn.l1, weight=0.001, inputs="prediction")
SPARSITY = pn.Term(pn.l1, name="sparsity", weight=0.01, inputs="params")
