// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// tooMany tells whether n of a number are too many to be believed without a person's word: at least
// least, and more than share percent.
func tooMany(n, of, least, share int) bool { return n >= least && n*100 > share*of }

// digest names a set, whatever its order, so that a person's confirmation is for exactly that set.
func digest(set []string) string {
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(set)), "\n")))
	return hex.EncodeToString(sum[:6])
}
