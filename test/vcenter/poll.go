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
	// pollEvery is how often the simulator is asked for what a call waits for.
	pollEvery = 50 * time.Millisecond
	// pollShare is how much longer than it took to be asked it is left alone: it copies every VM
	// each time.
	pollShare = 5
)

var maxWait = regexp.MustCompile(`(<maxWaitSeconds[^>]*>)([0-9]+)(</maxWaitSeconds>)`)

// Poll has a call that waits for news sent again and again as one that does not wait, until there
// are some or its time is over: a simulator that is asked one call at a time would be held by it.
// Other calls are sent as they are.
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
