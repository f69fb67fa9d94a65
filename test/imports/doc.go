// SPDX-License-Identifier: Apache-2.0

// Package imports holds the test that keeps Drover's floors apart: no import points upwards. It has
// no code of its own and may import nothing of ours.
package imports
