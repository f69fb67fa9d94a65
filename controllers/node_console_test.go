// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

func TestLastWords(t *testing.T) {
	t.Parallel()
	const token = "abcdef.0123456789abcdef"
	for name, c := range map[string]struct{ console, want string }{
		"nothing":          {"\n\r\n \x00", ""},
		"the last three":   {"one\ntwo\nthree\nfour\n", `"two", "three", "four"`},
		"the script alone": {"[ 5.1] sh[99]: drover: Fetching\r\ndebian login: \n", `"Fetching"`},
		"once": {
			"[ 5.1] sh[99]: drover: Fetching\ndrover: Fetching\ndrover: fetch failed\n[ 5.2] drover: fetch failed\n", `"Fetching", "fetch failed"`,
		},
		"colors, bells and half a character": {"\x1b[0;31mKernel\x1b[0m \apanic\xff\xc3\n", `"Kernel panic"`},
		"carriage returns":                   {"10%\r20%\r100%\n", `"10%", "20%", "100%"`},
		"long lines":                         {strings.Repeat("a b ", 500), `"` + strings.Repeat("a b ", 60) + `"`},
		"the token":                          {"one\nAuthorization " + token + "\nkey=" + token + ".\n", `"one"`},
		"the token in the script's words":    {"drover: one\ndrover: " + token + "\n", `"one"`},
		"what is called a secret":            {"one\nPassword: hunter2\nAWS_SECRET=1\nmy api-key 7\n-----BEGIN PRIVATE KEY-----\n", `"one"`},
		"what looks like a key":              {"one\nMIIBVjCB/aADAgECAgEBMAoGCCqGSM49BAMCMBIxEDAOBgNVBAMTB3Rlc3QtY2Ew\n", `"one"`},
		"an address of the script's":         {"drover: https://github.com/opencontainers/runc/releases/download/v1.4.0/runc.amd64 could not be fetched: curl: (6) Could not resolve host: github.com\n", `"https://github.com/opencontainers/runc/releases/download/v1.4.0/runc.amd64 could not be fetched: curl: (6) Could not resolve host: github.com"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			NewWithT(t).Expect(lastLines([]byte(c.console))).To(Equal(c.want))
		})
	}
}

// The console of a machine that is late for a day is read only a few times.
func TestConsoleIsReadSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := consoles{}
		s := &machineScope{DroverMachine: &infrav1.DroverMachine{
			Spec: infrav1.DroverMachineSpec{Creation: infrav1.DroverMachineCreation{Token: "one"}}}}
		since := time.Now()
		var asked []time.Duration
		for time.Sleep(5 * time.Minute); time.Since(since) < 24*time.Hour; time.Sleep(diagnosisInterval) {
			if c.of(s).due(since) {
				asked = append(asked, time.Since(since))
				c.set(s, "said")
			}
		}
		g := NewWithT(t)
		g.Expect(asked).To(Equal([]time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, 80 * time.Minute,
			160 * time.Minute, 320 * time.Minute, 640 * time.Minute, 1280 * time.Minute}))
		g.Expect(c.of(s).text).To(Equal("said"))
		s.Spec.Creation.Token = "two"
		g.Expect(c.of(s)).To(BeZero(), "of another VM")
		s.Spec.Creation.Token = "one"
		c.forget(s.key())
		g.Expect(c.of(s)).To(BeZero(), "of a machine that is gone")
	})
}

// The excerpt of any console is short, contains no token and fits a table column.
func FuzzLastWords(f *testing.F) {
	f.Add([]byte("drover: \x1b[31mone\nabcdef.0123456789abcdef\r\xff"))
	f.Fuzz(func(t *testing.T, console []byte) {
		words := lastLines(console)
		if words != oneLine(words) || len(words) > consoleLines*(consoleLine+4) || bootstrapToken.MatchString(words) {
			t.Errorf("%q becomes %q", console, words)
		}
	})
}
