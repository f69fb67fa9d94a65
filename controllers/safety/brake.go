// SPDX-License-Identifier: Apache-2.0

package safety

// tooMany reports whether n out of a total is too many to act on without confirmation by a person:
// n is at least least, and more than share percent of the total.
func tooMany(n, of, least, share int) bool { return n >= least && n*100 > share*of }
