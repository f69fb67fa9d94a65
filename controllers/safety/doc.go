// SPDX-License-Identifier: Apache-2.0

// Package safety holds what watches over the other reconcilers: it finds what costs money in a
// cloud and belongs to no machine any more, and freezes what makes too many machines, or would
// replace them while nobody can know how they are. It decides by complete listings and live reads
// alone, prefers to ask over being wrong, and may be switched off without harm to machines. It may
// import cloud and api, never bootstrap or a driver.
package safety
