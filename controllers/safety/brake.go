// SPDX-License-Identifier: Apache-2.0

package safety

// tooMany tells whether n of a number are too many to be believed without a person's word: at least
// least, and more than share percent.
func tooMany(n, of, least, share int) bool { return n >= least && n*100 > share*of }
