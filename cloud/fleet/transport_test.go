// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"net/http"
	"testing"
)

// HTTP/2 carries any number as a status. Each label of a metric is a series, so there are few.
func TestOutcomeIsOneOfFew(t *testing.T) {
	for status, want := range map[int]string{
		-1: "invalid", 0: "invalid", 99: "invalid", 100: "1xx", 200: "2xx", 301: "3xx", 404: "4xx", 429: "429", 500: "5xx", 599: "5xx",
		600: "invalid", 100_000: "invalid",
	} {
		if got := outcome(&http.Response{StatusCode: status}, nil); got != want {
			t.Errorf("status %d: %s, want %s", status, got, want)
		}
	}
}
