// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
)

const (
	repository     = "https://github.com/drover-dev/drover"
	provenanceFile = "provenance.json"
)

// provenance writes an in-toto statement with SLSA's predicate. It records which files were built, the commit that they
// were built from, and the settings of the build. It is not signed, because the machine that publishes a release signs
// it. It contains no time and no machine name, so that two builds produce the same bytes.
func (r release) provenance() error {
	sums, err := sumsOf(r.dist, checksumsFile, provenanceFile)
	if err != nil {
		return err
	}
	var subjects []any
	for _, sum := range sums {
		subjects = append(subjects, map[string]any{"name": sum.name, "digest": map[string]string{"sha256": sum.sha256}})
	}
	source := map[string]any{"uri": "git+" + repository}
	if r.revision != "" {
		source["digest"] = map[string]string{"gitCommit": r.revision}
	}
	text, err := json.MarshalIndent(map[string]any{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType": repository + "/tree/main/hack/release",
				"externalParameters": map[string]any{
					"VERSION": r.version, "IMG": r.image, "PLATFORMS": r.platforms,
					"SOURCE_DATE_EPOCH": strconv.FormatInt(r.created.Unix(), 10),
				},
				"internalParameters":   map[string]any{"go": runtime.Version()},
				"resolvedDependencies": []any{source},
			},
			"runDetails": map[string]any{"builder": map[string]any{"id": repository + "/blob/main/Makefile"}},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dist, provenanceFile), append(text, '\n'), 0o644)
}
