// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// timestamps matches timestamps in JSON. Their length does not depend on the time.
var timestamps = regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"`)

// shift moves all timestamps in a piece of JSON.
func shift(json []byte, by time.Duration) []byte {
	return timestamps.ReplaceAllFunc(json, func(quoted []byte) []byte {
		text := string(quoted[1 : len(quoted)-1])
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return quoted
		}
		layout := "2006-01-02T15:04:05Z"
		if fraction := len(text) - len(layout); fraction > 0 {
			layout = "2006-01-02T15:04:05." + string(bytes.Repeat([]byte("0"), fraction-1)) + "Z"
		}
		return []byte(`"` + at.UTC().Add(by).Format(layout) + `"`)
	})
}

// askPlain requests JSON from upstream, the only format that shift can read.
func askPlain(req *http.Request) {
	req.Header.Set("Accept", runtime.ContentTypeJSON)
	req.Header.Del("Accept-Encoding")
}

// plain converts a request in Protobuf, which clients use for Kubernetes' own kinds, to JSON.
func plain(req *http.Request, body []byte) ([]byte, error) {
	if req.Header.Get("Content-Type") != runtime.ContentTypeProtobuf {
		return body, nil
	}
	object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("read what was sent: %w", err)
	}
	object.GetObjectKind().SetGroupVersionKind(*kind)
	req.Header.Set("Content-Type", runtime.ContentTypeJSON)
	return json.Marshal(object)
}

// shiftedLines is the body of a watch, one event per line, with shifted timestamps.
type shiftedLines struct {
	io.Closer
	lines *bufio.Reader
	by    time.Duration
	rest  []byte
	err   error
}

func newShiftedLines(body io.ReadCloser, by time.Duration) *shiftedLines {
	return &shiftedLines{Closer: body, lines: bufio.NewReader(body), by: by}
}

func (s *shiftedLines) Read(b []byte) (int, error) {
	if len(s.rest) == 0 && s.err == nil {
		var line []byte
		line, s.err = s.lines.ReadBytes('\n')
		s.rest = shift(line, s.by)
	}
	if len(s.rest) == 0 {
		return 0, s.err
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}
