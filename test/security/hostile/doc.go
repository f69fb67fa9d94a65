// SPDX-License-Identifier: Apache-2.0

// Package hostile has tests of the drivers against endpoints of clouds that are an attacker's, or
// broken. Its tests measure memory.
package hostile
