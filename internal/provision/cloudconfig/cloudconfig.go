// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cloudconfig parses the cloud-config that Cluster API bootstrap providers create.
//
// It accepts only the parts that a Host can carry out: files and commands.
package cloudconfig

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/drover-dev/drover/internal/untrusted"
)

// maxContent is the maximum total size of all files, in bytes. Larger files would not fit in a Host's instructions.
const maxContent = 1 << 20

// maxVariables is the maximum number of variables in a template. The kubeadm provider uses two variables.
const maxVariables = 256

// bounds returns the limits on bootstrap data. kubeadm's data is about 30 KiB in size, plus the user's files. The limit
// on the number of values is sufficient for 250 files.
func bounds() untrusted.Bounds { return untrusted.Bounds{Bytes: 768 << 10, Nodes: 4096, Depth: 8} }

// written returns the limits on bootstrap data after its conversion to JSON. In JSON, a line break takes two bytes and
// some other characters take six. A value may be counted twice.
func written() untrusted.Bounds { return untrusted.Bounds{Bytes: 6 << 20, Nodes: 8192, Depth: 8} }

// Config describes one-time work on a machine.
type Config struct {
	// Files are written before the commands run. Each path occurs only once.
	Files []File
	// Commands are the lines of a script for /bin/sh. As with cloud-init, the script continues after a failed command.
	Commands []string
}

// File is a file to write.
type File struct {
	Path     string
	Content  []byte
	Mode     string // in octal
	UID, GID int
}

// Instance contains the facts about the machine that templates can use.
type Instance struct {
	// ID is the value of "ds.meta_data.instance_id".
	ID string
	// Hostname is the value of "ds.meta_data.local_hostname".
	Hostname string
}

// document is a cloud-config. A key without a field in this struct is rejected. The error names the key.
type document struct {
	WriteFiles []writeFile       `json:"write_files"`
	RunCmd     []json.RawMessage `json:"runcmd"`
}

type writeFile struct {
	Path        string          `json:"path"`
	Content     string          `json:"content"`
	Encoding    string          `json:"encoding"`
	Owner       string          `json:"owner"`
	Permissions json.RawMessage `json:"permissions"`
	Append      bool            `json:"append"`
	Defer       bool            `json:"defer"` // defers the file until users are created; Drover creates none
}

// Parse parses a cloud-config for one machine. Its errors do not contain any part of the cloud-config.
func Parse(raw []byte, instance Instance) (*Config, error) {
	if !header.Match(raw) {
		return nil, errors.New("the bootstrap data is not a cloud-config: it does not begin with #cloud-config")
	}
	text, err := render(string(raw), instance)
	if err != nil {
		return nil, err
	}
	content, err := untrusted.AsJSON([]byte(text), bounds())
	if err != nil {
		return nil, fmt.Errorf("the bootstrap data cannot be read as YAML: %w", err)
	}
	var keys map[string]json.RawMessage
	if err := untrusted.JSON(content, &keys, written()); err != nil {
		return nil, errors.New("the bootstrap data is not a YAML object") // the cause may quote content
	}
	if err := onlyKnown(keys); err != nil {
		return nil, err
	}
	doc := document{}
	if err := untrusted.StrictJSON(content, &doc, written()); err != nil {
		return nil, errors.New("write_files or runcmd of the bootstrap data does not have the form that cloud-init documents, or a file asks for more than path, content, encoding, owner, permissions")
	}
	config := &Config{}
	if config.Files, err = files(doc.WriteFiles); err != nil {
		return nil, err
	}
	config.Commands, err = commands(doc.RunCmd)
	return config, err
}

// refused contains keys that bootstrap providers write and Drover does not support. These keys prepare a machine. The
// machine of a Host has already been prepared by its owner.
var refused = map[string]string{
	"bootcmd":    "commands at each boot (bootCommands): create a systemd unit with files and preKubeadmCommands",
	"disk_setup": "partitions (diskSetup): prepare the disks before the machine joins",
	"fs_setup":   "file systems (diskSetup): prepare the disks before the machine joins",
	"mounts":     "mounts: write them to /etc/fstab before the machine joins",
	"ntp":        "NTP: configure time synchronization before the machine joins",
	"users":      "users: create them before the machine joins",
}

func onlyKnown(keys map[string]json.RawMessage) error {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key == "write_files" || key == "runcmd" {
			continue
		}
		if why, known := refused[key]; known {
			return fmt.Errorf("a Host is not given %s", why)
		}
		return fmt.Errorf("the bootstrap data has a key that is neither write_files nor runcmd: %.32q", key)
	}
	return nil
}

// header matches the start of a cloud-config. Neither scripts nor fully compressed data have this header.
var header = regexp.MustCompile(`^(##\s*template:\s*jinja[ \t\r]*\n)?#cloud-config[ \t\r]*(\n|$)`)

// templated matches the first line of a cloud-config that is a Jinja template.
var templated = regexp.MustCompile(`^##\s*template:\s*jinja[ \t\r]*\n`)

var variable = regexp.MustCompile(`\{\{-?\s*([A-Za-z0-9_.]+)\s*-?\}\}`)

// plain matches values that may be inserted into a template. YAML parsers, shells and the kubelet all treat such a
// value as a single word.
var plain = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9./-]{0,253}$`)

// render replaces the variables in a template. It rejects templates that use other Jinja features.
func render(text string, instance Instance) (string, error) {
	if !templated.MatchString(text) {
		return text, nil
	}
	values := map[string]string{"instance_id": instance.ID, "local_hostname": instance.Hostname, "hostname": instance.Hostname}
	if len(variable.FindAllStringIndex(text, maxVariables+1)) > maxVariables {
		// a variable may expand to a name of 250 bytes
		return "", fmt.Errorf("the bootstrap data is a Jinja template with more than %d variables", maxVariables)
	}
	var err error
	text = variable.ReplaceAllStringFunc(text, func(match string) string {
		name := variable.FindStringSubmatch(match)[1]
		value := values[strings.TrimPrefix(strings.TrimPrefix(name, "ds.meta_data."), "v1.")]
		if !plain.MatchString(value) {
			err = fmt.Errorf("the bootstrap data asks for {{ %.64s }}, which Drover does not know about the Host", name)
			return ""
		}
		return value
	})
	if err != nil {
		return "", err
	}
	for _, mark := range []string{"{{", "{%", "{#"} {
		if strings.Contains(text, mark) {
			return "", fmt.Errorf("the bootstrap data is a Jinja template that uses %q for more than a variable: write that content in base64", mark)
		}
	}
	return text, nil
}

func files(all []writeFile) ([]File, error) {
	var out []File
	room := maxContent
	for i, f := range all {
		file, err := f.file(room)
		if err != nil {
			return nil, fmt.Errorf("write_files[%d]: %w", i, err)
		}
		room -= len(file.Content)
		// A later file replaces an earlier file with the same path.
		out = append(slices.DeleteFunc(out, func(o File) bool { return o.Path == file.Path }), file)
	}
	return out, nil
}

func (f writeFile) file(room int) (File, error) {
	out := File{Path: f.Path, Mode: "0644"} // cloud-init's default
	if f.Append {
		return out, errors.New("append is not supported: write the whole file")
	}
	var err error
	if out.Mode, err = mode(f.Permissions); err != nil {
		return out, err
	}
	if out.UID, out.GID, err = owner(f.Owner); err != nil {
		return out, err
	}
	out.Content, err = decode(f.Content, f.Encoding, room)
	return out, err
}

func mode(raw json.RawMessage) (string, error) {
	var text string
	if len(raw) == 0 {
		return "0644", nil
	}
	if err := untrusted.JSON(raw, &text, untrusted.Small()); err != nil {
		return "", errors.New("permissions must be in quotes, like '0640'")
	}
	text = strings.TrimPrefix(text, "0o")
	number, err := strconv.ParseUint(text, 8, 32)
	if err != nil || number > 0o777 {
		return "", errors.New("permissions must be octal, at most 0777")
	}
	return fmt.Sprintf("%04o", number), nil
}

// owner parses a user and a group. It accepts only root and numeric IDs, because other names depend on the machine.
func owner(text string) (uid, gid int, err error) {
	user, group, both := strings.Cut(text, ":")
	if !both {
		group = user
	}
	id := func(name string) int {
		if name == "" || name == "root" {
			return 0
		}
		number, parseErr := strconv.ParseUint(name, 10, 31)
		if parseErr != nil {
			err = errors.New("the owner must be root or numbers: Drover creates no users")
		}
		return int(number)
	}
	uid, gid = id(user), id(group)
	return uid, gid, err
}

// decode decodes the content of a file. It returns an error if the content is longer than room bytes.
func decode(content, encoding string, room int) ([]byte, error) {
	tooMuch := fmt.Errorf("the files have more than %d bytes", maxContent)
	var out []byte
	switch encoding = strings.ToLower(strings.TrimSpace(encoding)); encoding {
	case "", "text/plain":
		out = []byte(content)
	case "b64", "base64", "gz+b64", "gz+base64", "gzip+b64", "gzip+base64":
		decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(content))
		if err != nil {
			return nil, errors.New("the content is not base64")
		}
		if out = decoded; encoding[0] == 'g' {
			if out, err = unzip(decoded, room); err != nil {
				return nil, err
			}
		}
	default:
		return nil, errors.New("the encoding must be base64 or gzip+base64")
	}
	if len(out) > room {
		return nil, tooMuch
	}
	return out, nil
}

// unzip decompresses content. It reads at most one byte more than the limit.
func unzip(packed []byte, room int) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, errors.New("the content is not gzip")
	}
	out, err := io.ReadAll(io.LimitReader(reader, int64(room)+1))
	if err != nil {
		return nil, errors.New("the content is not gzip")
	}
	return out, nil
}

// commands returns the lines of a script. Each item is either a string or a list. A string is a whole line. A list is a
// command with its arguments.
func commands(all []json.RawMessage) ([]string, error) {
	var out []string
	for i, raw := range all {
		var line string
		var words []string
		switch {
		case untrusted.JSON(raw, &line, written()) == nil:
		case untrusted.JSON(raw, &words, written()) == nil && len(words) > 0:
			for n := range words {
				words[n] = "'" + strings.ReplaceAll(words[n], "'", `'\''`) + "'"
			}
			line = strings.Join(words, " ")
		default:
			return nil, fmt.Errorf("runcmd[%d] is neither a string nor a list of strings", i)
		}
		if strings.ContainsRune(line, 0) {
			return nil, fmt.Errorf("runcmd[%d] has a zero byte", i)
		}
		out = append(out, line)
	}
	return out, nil
}
