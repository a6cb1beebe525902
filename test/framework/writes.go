// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
)

var (
	isWrite   = regexp.MustCompile(`verb="(POST|PUT|PATCH|APPLY|DELETE|DELETECOLLECTION)"`)
	isPassing = regexp.MustCompile(`resource="(leases|subjectaccessreviews|tokenreviews)"`)
)

// Writes returns the number of writes that the API server has served since it started. Writes of leases and reviews
// do not count.
func (p *Plane) Writes(ctx context.Context) (float64, error) {
	text, err := p.metrics(ctx)
	if err != nil {
		return 0, fmt.Errorf("read metrics of %s: %w", p.Name(), err)
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "apiserver_request_total{") || !isWrite.MatchString(line) || isPassing.MatchString(line) {
			continue
		}
		line = strings.TrimSpace(line)
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("read metrics of %s: %w", p.Name(), err)
		}
		sum += value
	}
	return sum, nil
}

func (p *Plane) metrics(ctx context.Context) (string, error) {
	client, err := rest.HTTPClientFor(p.RESTConfig())
	if err != nil {
		return "", err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL()+"/metrics", nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	return string(raw), err
}
