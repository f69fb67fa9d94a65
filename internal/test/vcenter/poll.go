// SPDX-License-Identifier: Apache-2.0

package vcenter

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"
)

const (
	// pollEvery is the minimum pause between polls of the simulator.
	pollEvery = 50 * time.Millisecond
	// pollShare is the minimum pause between polls as a multiple of the duration of a poll, because
	// each poll copies every VM.
	pollShare = 5
)

var maxWait = regexp.MustCompile(`(<maxWaitSeconds[^>]*>)([0-9]+)(</maxWaitSeconds>)`)

// Poll replaces a call that waits for updates by repeated calls that do not wait, until there are
// updates or the time of the call is over. A call that waits would block a simulator that handles
// one call at a time. Other calls are sent unchanged.
func Poll(req *http.Request, send func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	if req.Body == nil {
		return send(req)
	}
	body, err := io.ReadAll(req.Body)
	_ = req.Body.Close()
	if err != nil {
		return nil, err
	}
	seconds := 0
	if found := maxWait.FindSubmatch(body); found != nil {
		seconds, _ = strconv.Atoi(string(found[2]))
		body = maxWait.ReplaceAll(body, []byte("${1}0${3}"))
	}
	for end := time.Now().Add(time.Duration(seconds) * time.Second); ; {
		began := time.Now()
		once := req.Clone(req.Context())
		once.Body, once.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		resp, err := send(once)
		if err != nil || seconds == 0 {
			return resp, err
		}
		answer, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return nil, err
		}
		resp.Body = io.NopCloser(bytes.NewReader(answer))
		if resp.StatusCode != http.StatusOK || bytes.Contains(answer, []byte("<returnval")) || !time.Now().Before(end) {
			return resp, nil
		}
		select {
		case <-time.After(max(pollEvery, pollShare*time.Since(began))):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
}
