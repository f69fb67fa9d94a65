// SPDX-License-Identifier: Apache-2.0

// Package imports tests that Drover's layers stay separate: no import points upwards. It has no
// code of its own and must not import other packages of this module.
package imports
