// SPDX-License-Identifier: Apache-2.0

// Package driverkit holds what drivers share. It imports the contract, and neither a driver nor
// package fleet.
package driverkit

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/drover-io/drover/cloud"
)

// HostName returns a DNS label (RFC 1123) of at most n bytes for a machine's name. A name that had
// to be changed gets a digest of the original, so that two names never become one.
func HostName(name string, n int) string {
	fit := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, name), "-")
	if fit == name && fit != "" && len(fit) <= n {
		return fit
	}
	sum := sha256.Sum256([]byte(name))
	fit = strings.Trim(cloud.Clip(fit, n-9), "-")
	return strings.TrimLeft(fmt.Sprintf("%s-%x", fit, sum[:4]), "-")
}
