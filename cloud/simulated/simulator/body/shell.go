// SPDX-License-Identifier: Apache-2.0

package body

import (
	"path"
	"slices"
	"strings"
)

// maxDepth bounds how deep scripts may call scripts.
const maxDepth = 5

// startsKubelet tells whether a shell text would start the kubelet: by systemctl, in a shell inside the shell, or in a
// script that the user data wrote. Every command is taken to succeed.
func startsKubelet(script string, files func(path string) (string, bool), depth int) bool {
	if depth > maxDepth {
		return false
	}
	for _, words := range commands(script) {
		if commandStartsKubelet(words, files, depth) {
			return true
		}
	}
	return false
}

// prefixes are words that come before the command itself.
var prefixes = []string{"sudo", "exec", "nohup", "time", "env", "if", "then", "else", "elif", "do", "while", "until", "!", "{", "("}

func commandStartsKubelet(words []string, files func(string) (string, bool), depth int) bool {
	for len(words) > 0 && (slices.Contains(prefixes, words[0]) || isAssignment(words[0])) {
		words = words[1:]
	}
	if len(words) == 0 {
		return false
	}
	switch path.Base(words[0]) {
	case "systemctl":
		return systemctlStartsKubelet(words[1:])
	case "sh", "bash", "dash", "ash":
		return shellStartsKubelet(words[1:], files, depth)
	case "source", ".":
		words = words[1:]
	}
	if len(words) == 0 {
		return false
	}
	script, ok := files(words[0])
	return ok && startsKubelet(script, files, depth+1)
}

func isAssignment(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	return ok && name != "" && !strings.ContainsAny(name, "/-.")
}

// shellStartsKubelet is for the arguments of a shell: -c text, or a file.
func shellStartsKubelet(args []string, files func(string) (string, bool), depth int) bool {
	for n := 0; n < len(args); n++ {
		arg := args[n]
		switch {
		case arg == "-o" || arg == "+o":
			n++
		case strings.HasPrefix(arg, "--"):
		case strings.HasPrefix(arg, "-") && strings.Contains(arg, "c"):
			// Options such as "-o pipefail" may stand between -c and its text.
			rest := args[n+1:]
			for len(rest) > 0 && strings.HasPrefix(rest[0], "-") {
				rest = rest[1:]
			}
			return len(rest) > 0 && startsKubelet(rest[0], files, depth+1)
		case strings.HasPrefix(arg, "-"):
			if strings.HasSuffix(arg, "o") {
				n++
			}
		default:
			script, ok := files(arg)
			return ok && startsKubelet(script, files, depth+1)
		}
	}
	return false
}

func systemctlStartsKubelet(args []string) bool {
	verb, now, kubelet := "", false, false
	for _, a := range args {
		switch {
		case a == "--now":
			now = true
		case strings.HasPrefix(a, "-"):
		case verb == "":
			verb = a
		case a == "kubelet" || a == "kubelet.service":
			kubelet = true
		}
	}
	switch verb {
	case "start", "restart", "reload-or-restart":
		return kubelet
	case "enable", "reenable":
		return kubelet && now
	}
	return false
}

// commands cuts a shell text into simple commands, each cut into words without their quotes. What stands behind "||" is
// left out: it runs only after a failure.
func commands(script string) [][]string {
	c := cutter{}
	for i := 0; i < len(script); i++ {
		i = c.step(script, i)
	}
	c.endCommand(false)
	return c.out
}

type cutter struct {
	out    [][]string
	words  []string
	word   strings.Builder
	inWord bool
	// skip is set behind "||".
	skip bool
}

func (c *cutter) add(b byte) {
	c.word.WriteByte(b)
	c.inWord = true
}

func (c *cutter) endWord() {
	if c.inWord {
		c.words = append(c.words, c.word.String())
	}
	c.word.Reset()
	c.inWord = false
}

func (c *cutter) endCommand(skipNext bool) {
	c.endWord()
	if len(c.words) > 0 && !c.skip {
		c.out = append(c.out, c.words)
	}
	c.words, c.skip = nil, skipNext
}

// step takes the character at i, with those that belong to it, and returns the index of the last one it took.
func (c *cutter) step(s string, i int) int {
	next := byte(0)
	if i+1 < len(s) {
		next = s[i+1]
	}
	switch ch := s[i]; ch {
	case '\\':
		if next != 0 && next != '\n' {
			c.add(next)
		}
		return i + 1
	case '\'', '"':
		return c.quoted(s, i, ch)
	case ' ', '\t', '\r':
		c.endWord()
	case '#':
		if c.inWord {
			c.add(ch)
			return i
		}
		if end := strings.IndexByte(s[i:], '\n'); end >= 0 {
			return i + end - 1
		}
		return len(s)
	case '|', '&':
		if next == ch {
			c.endCommand(ch == '|')
			return i + 1
		}
		c.endCommand(false)
	case ';', '\n', ')':
		c.endCommand(false)
	default:
		c.add(ch)
	}
	return i
}

// quoted takes a quoted part of a word.
func (c *cutter) quoted(s string, i int, quote byte) int {
	c.inWord = true
	for i++; i < len(s) && s[i] != quote; i++ {
		if s[i] == '\\' && quote == '"' && i+1 < len(s) && strings.IndexByte("\"\\$`", s[i+1]) >= 0 {
			i++
		}
		c.word.WriteByte(s[i])
	}
	return i
}
