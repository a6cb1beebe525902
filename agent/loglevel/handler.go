// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package loglevel

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
)

// Debug is the level of what logr calls V(1). Libraries say the rest, which is for their own developers, at higher ones.
const Debug = slog.LevelInfo - 1

// Handler writes JSON lines at a level that can be changed at any time.
func Handler(w io.Writer, level slog.Leveler) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if l, ok := a.Value.Any().(slog.Level); ok && a.Key == slog.LevelKey && len(groups) == 0 {
			a.Value = slog.StringValue(name(l))
		}
		return a
	}})
}

func name(level slog.Level) string {
	if level < slog.LevelInfo {
		return "debug"
	}
	return strings.ToLower(level.String())
}

// served answers GET with the level, and PUT when it has set another.
type served struct{ level *slog.LevelVar }

func (s served) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		var wanted body
		if err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&wanted); err != nil {
			respond(w, http.StatusBadRequest, body{Error: fmt.Sprintf("decode level: %v", err)})
			return
		}
		switch wanted.Level {
		case "debug":
			s.level.Set(Debug)
		case "info":
			s.level.Set(slog.LevelInfo)
		default:
			respond(w, http.StatusBadRequest, body{Error: fmt.Sprintf("%q is none of %v", wanted.Level, levels())})
			return
		}
	}
	respond(w, http.StatusOK, body{Level: name(s.level.Level())})
}

func respond(w http.ResponseWriter, code int, answer body) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // who asked has gone
}
