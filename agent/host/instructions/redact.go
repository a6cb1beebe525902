// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"cmp"
	"encoding/base64"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/drover-dev/drover/internal/protocol"
)

const (
	redacted = "<secret>"
	// shortestVariable is the minimum length, in bytes, at which a variable's value counts as a secret. shortestWord is
	// the minimum for a word in a file. Shorter values could occur in any text by chance.
	shortestVariable = 4
	shortestWord     = 12
	// longestName is the length, in bytes, at which a word in a command no longer counts as the name of a secret. Such
	// a long word may itself be a secret.
	longestName = 24
	// reportedLines and reportedBytes limit how much of an instruction's output is reported.
	reportedLines = 20
	reportedBytes = 2 << 10
)

// secretsOf returns the strings that must not appear in reports about instructions: the values of variables, named
// secrets in commands, words in files that not all users can read, and proxy passwords. It returns each of them plain
// and encoded. Longer strings come first, so that a secret is replaced before any secret that it contains.
func secretsOf(all *protocol.HostInstructions) []string {
	var secrets []string
	for _, variable := range inherited() {
		_, value, _ := strings.Cut(variable, "=")
		if proxy, err := url.Parse(value); err == nil {
			password, _ := proxy.User.Password()
			secrets = add(secrets, password, shortestVariable)
		}
	}
	for _, instruction := range slices.Concat(all.Instructions, all.Periodic, all.Clean) {
		for _, value := range instruction.Env {
			for line := range strings.Lines(value) {
				secrets = add(secrets, line, shortestVariable)
			}
			if strings.Contains(strings.TrimSpace(value), "\n") {
				secrets = append(secrets, encoded(value)...)
			}
		}
		secrets = append(secrets, namedSecrets(instruction.Command)...)
	}
	for _, file := range all.Files {
		if modeOf(file)&0o004 != 0 {
			continue
		}
		for _, word := range strings.FieldsFunc(string(file.Content), func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`"'=,:`, r) }) {
			secrets = add(secrets, word, shortestWord)
		}
	}
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	return slices.Compact(secrets)
}

// add adds all forms in which a secret may appear, unless the secret is too short.
func add(secrets []string, secret string, shortest int) []string {
	if secret = plain(strings.TrimSpace(secret)); len(secret) < shortest {
		return secrets
	}
	secrets = append(secrets, secret)
	for _, form := range []string{url.QueryEscape(secret), url.PathEscape(secret), strings.Trim(strconv.Quote(secret), `"`)} {
		if form != secret {
			secrets = append(secrets, form)
		}
	}
	return append(secrets, encoded(secret)...)
}

// encoded returns the base64 encodings of a text for all possible alignments within encoded data. Each encoding
// contains only the characters that do not depend on the surrounding data.
func encoded(text string) []string {
	var forms []string
	for before := range 3 {
		whole := base64.StdEncoding.EncodeToString(append(make([]byte, before), text...))
		form := whole[(before*8+5)/6 : (before+len(text))*8/6]
		forms = append(forms, form)
		if other := strings.NewReplacer("+", "-", "/", "_").Replace(form); other != form {
			forms = append(forms, other)
		}
	}
	return forms
}

var (
	secretName = regexp.MustCompile(`(?i)(token|passw|passphrase|secret|credential|api-?_?key|access-?_?key|private-?_?key|auth|^bearer$|^basic$)`)
	// pathName matches the name of a flag whose value is the path of a secret. It matches only the end of the name.
	pathName = regexp.MustCompile(`(?i)(file|dir|path)$`)
	userInfo = regexp.MustCompile(`[a-z]://([^/@\s]+)@`)
)

// namedSecrets returns the words of a command that follow a name such as "--token" or "PASSWORD=", passwords in
// URLs, and words that look random.
func namedSecrets(command []string) []string {
	var secrets []string
	name := ""
	for _, argument := range command {
		if namesSecret(name) && !strings.HasPrefix(argument, "-") {
			secrets = add(secrets, argument, shortestVariable)
		}
		for _, user := range userInfo.FindAllStringSubmatch(argument, -1) {
			for part := range strings.SplitSeq(user[1], ":") {
				secrets = add(secrets, part, shortestVariable)
			}
		}
		for _, word := range strings.FieldsFunc(argument, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("\"'=,:;()<>|&`", r) }) {
			switch isName := secretName.MatchString(word) && len(word) < longestName; {
			case namesSecret(name) && !isName && !strings.HasPrefix(word, "-"):
				secrets = add(secrets, word, shortestVariable)
			case random(word):
				secrets = add(secrets, word, shortestWord)
			}
			name = word
		}
	}
	return secrets
}

func namesSecret(word string) bool {
	return secretName.MatchString(word) && !pathName.MatchString(word)
}

// random reports whether a word looks like a key: it is long, consists of letters and digits, and is neither a path nor
// a URL.
func random(word string) bool {
	return len(word) >= longestName && strings.ContainsFunc(word, unicode.IsDigit) && strings.ContainsFunc(word, unicode.IsLetter) && !strings.ContainsAny(word, "/$")
}

// plain removes terminal control sequences from text, so that a secret is recognized even if it contains such
// sequences.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}

// report returns the last lines of output, without secrets or terminal control sequences.
func report(output string, secrets []string) string {
	output = plain(output)
	for _, secret := range secrets {
		output = strings.ReplaceAll(output, secret, redacted)
	}
	lines := strings.Split(strings.TrimSpace(output), "\n")
	text := strings.Join(lines[max(0, len(lines)-reportedLines):], "\n")
	return strings.ToValidUTF8(text[max(0, len(text)-reportedBytes):], "")
}
