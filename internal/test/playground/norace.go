// SPDX-License-Identifier: Apache-2.0

//go:build !race

package playground

// raced is whether this program is built with the race detector.
const raced = false
