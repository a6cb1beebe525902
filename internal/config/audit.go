// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"

	"github.com/drover-dev/drover/internal/audit"
)

// Audit configures the log of users' requests to members.
type Audit struct {
	// Level is Off, Metadata, or Request. Request also logs bodies, except bodies that contain secrets. Default: Off.
	Level audit.Level `json:"level,omitempty"`
	// Mode determines what happens if lines are produced faster than they can be written. It is Dropping or Blocking.
	// Default: Dropping.
	Mode audit.Mode `json:"mode,omitempty"`
	// Path is the absolute path of the file, or "-" for standard output. Default: "-".
	Path string `json:"path,omitempty"`
	// MaxSizeMiB is the size at which the file is renamed to Path.1 and a new file is started. Default: 100.
	MaxSizeMiB int64 `json:"maxSizeMiB,omitempty"`
	// MaxBackups is the number of renamed files that are kept. Default: 5.
	MaxBackups int `json:"maxBackups,omitempty"`
}

func (a *Audit) setDefaults() {
	setDefault(&a.Level, audit.LevelOff)
	setDefault(&a.Mode, audit.ModeDropping)
	setDefault(&a.Path, "-")
	setDefault(&a.MaxSizeMiB, 100)
	setDefault(&a.MaxBackups, 5)
}

func (a *Audit) validate(add func(field, format string, args ...any)) {
	switch a.Level {
	case audit.LevelOff, audit.LevelMetadata, audit.LevelRequest:
	default:
		add("audit.level", "%q is none of Off, Metadata, Request", a.Level)
	}
	if a.Mode != audit.ModeDropping && a.Mode != audit.ModeBlocking {
		add("audit.mode", "%q is neither Dropping nor Blocking", a.Mode)
	}
	if a.Path != "-" && !filepath.IsAbs(a.Path) {
		add("audit.path", "%q is neither an absolute path nor \"-\"", a.Path)
	}
	if a.MaxSizeMiB < 1 || a.MaxBackups < 0 {
		add("audit.maxSizeMiB, maxBackups", "want at least 1 and at least 0")
	}
}

// Settings returns the settings for package audit.
func (a Audit) Settings() audit.Settings {
	return audit.Settings{Level: a.Level, Mode: a.Mode, Path: a.Path, MaxSize: a.MaxSizeMiB << 20,
		MaxBackups: a.MaxBackups}
}
