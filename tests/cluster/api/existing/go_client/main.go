// A program on Nomad's Go module `api`. It calls an agent as its users do and prints what it received as JSON.
//
// Usage: go_client ADDRESS ACTION
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"
)

// A hanging action ends at this limit.
const limit = 90 * time.Second

type report map[string]any

var actions = map[string]func(*api.Client) report{
	"jobs":        jobs,
	"evaluations": evaluations,
	"blocking":    blocking,
	"nodes":       nodes,
	"variables":   variables,
	"search":      search,
	"events":      events,
	"files":       files,
	"errors":      failures,
	"services":    services,
	"pages":       pages,
}

func main() {
	if len(os.Args) != 3 || actions[os.Args[2]] == nil {
		fail(errors.New("usage: go_client ADDRESS ACTION"))
	}
	time.AfterFunc(limit, func() { fail(fmt.Errorf("not done within %s", limit)) })
	client := must(api.NewClient(&api.Config{Address: os.Args[1]}))
	check(json.NewEncoder(os.Stdout).Encode(actions[os.Args[2]](client)))
}

func jobs(client *api.Client) report {
	jobs := client.Jobs()
	valid := must2(jobs.Validate(aJob("web", 2), nil))
	planned := must2(jobs.Plan(aJob("web", 2), true, nil))
	registered, first, err := jobs.Register(aJob("web", 2), nil)
	check(err)
	untilRunning(client, "web", 2, 0)
	changed, second, err := jobs.Register(aJob("web", 3), nil)
	check(err)
	grown := untilRunning(client, "web", 3, 0)
	untilDeployed(client, "web") // Until then scaling is refused.
	must2(jobs.Scale("web", "g", pointer(2), "fewer", false, nil, nil))
	running := untilRunning(client, "web", 2, 0)
	versions, _, _, err := jobs.Versions("web", false, nil)
	check(err)
	must2(jobs.Deregister("web", false, nil))
	stopped := must2(jobs.Info("web", nil))
	must2(jobs.Deregister("web", true, nil))
	_, _, gone := jobs.Info("web", nil)
	return report{
		"errors of validation": valid.ValidationErrors,
		"diff":                 planned.Diff.Type,
		"planned":              planned.Annotations.DesiredTGUpdates["g"].Place,
		"indexes rise":         changed.JobModifyIndex > registered.JobModifyIndex && second.LastIndex > first.LastIndex,
		"allocations":          len(grown),
		"running":              len(running),
		"versions":             len(versions),
		"stopped":              *stopped.Stop,
		"purged":               statusOf(gone),
	}
}

func evaluations(client *api.Client) report {
	registered := must2(client.Jobs().Register(aJob("rollout", 1), nil))
	stub := untilRunning(client, "rollout", 1, 0)[0]
	deployment := untilDeployed(client, "rollout")
	info := must2(client.Allocations().Info(stub.ID, nil))
	forced := must2(client.Jobs().ForceEvaluate("rollout", nil))
	return report{
		"evaluation":                describe(must2(client.Evaluations().Info(registered.EvalID, nil))),
		"allocations of evaluation": must2(client.Evaluations().Allocations(registered.EvalID, nil))[0].ID == stub.ID,
		"deployment":                deployment.Status,
		"deployments":               len(must2(client.Jobs().Deployments("rollout", true, nil))),
		"allocations of deployment": must2(client.Deployments().Allocations(deployment.ID, nil))[0].ID == stub.ID,
		"allocation":                *info.Job.ID + " " + info.TaskStates["t"].State,
		"forced evaluation":         describe(must2(client.Evaluations().Info(forced, nil))),
	}
}

func describe(one *api.Evaluation) string { return one.JobID + " " + one.TriggeredBy }

// blocking reads with the index of the reply before, so each read waits for a change.
func blocking(client *api.Client) report {
	must2(client.Jobs().Register(aJob("watched", 1), nil))
	untilRunning(client, "watched", 1, 0)
	meta, waited := untilQuiet(client, "watched")
	must2(client.Jobs().Register(aJob("watched", 2), nil))
	grown := untilRunning(client, "watched", 2, meta.LastIndex)
	return report{
		"index":        meta.LastIndex > 0,
		"known leader": meta.KnownLeader,
		"waited":       waited,
		"after change": len(grown),
	}
}

func nodes(client *api.Client) report {
	node := must2(client.Nodes().List(nil))[0]
	drain := must(client.Nodes().UpdateDrain(node.ID, &api.DrainSpec{Deadline: time.Second}, false, nil))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var messages []string
	for message := range client.Nodes().MonitorDrain(ctx, node.ID, drain.NodeModifyIndex, false) {
		messages = append(messages, message.Message)
	}
	drained := must2(client.Nodes().Info(node.ID, nil))
	must(client.Nodes().ToggleEligibility(node.ID, true, nil))
	eligible := must2(client.Nodes().Info(node.ID, nil))
	must(client.Nodes().ToggleEligibility(node.ID, false, nil))
	ineligible := must2(client.Nodes().Info(node.ID, nil))
	must(client.Nodes().ToggleEligibility(node.ID, true, nil))
	return report{
		"status":         node.Status,
		"drain":          drained.LastDrain.Status,
		"drain reported": strings.Contains(strings.Join(messages, "\n"), "Drain complete"),
		"after drain":    drained.SchedulingEligibility,
		"eligible":       eligible.SchedulingEligibility,
		"ineligible":     ineligible.SchedulingEligibility,
		"leader":         must(client.Status().Leader()) != "",
		"memory":         must(client.Nodes().Stats(node.ID, nil)).Memory.Total > 0,
	}
}

func variables(client *api.Client) report {
	all := client.Variables()
	wanted := api.NewVariable("app/settings")
	wanted.Items["colour"] = "blue"
	created := must2(all.Create(wanted, nil))
	_, _, conflict := all.CheckedCreate(wanted, nil)
	created.Items["colour"] = "green"
	changed := must2(all.CheckedUpdate(created, nil))
	_, _, outdated := all.CheckedUpdate(created, nil)
	read := must2(all.Read("app/settings", nil))
	listed := must2(all.PrefixList("app/", nil))
	check2(all.Delete("app/settings", nil))
	_, _, gone := all.Read("app/settings", nil)
	absent := must2(all.Peek("app/settings", nil))
	var one api.ErrCASConflict
	return report{
		"items":       read.Items,
		"listed":      listed[0].Path,
		"index rises": changed.ModifyIndex > created.ModifyIndex,
		"conflict":    errors.As(conflict, &one),
		"outdated":    errors.As(outdated, &one),
		"gone":        errors.Is(gone, api.ErrVariablePathNotFound),
		"peek":        absent,
	}
}

func search(client *api.Client) report {
	must2(client.Jobs().Register(aJob("sought", 0), nil))
	exact := must2(client.Search().PrefixSearch("soug", contexts.Jobs, nil))
	fuzzy := must2(client.Search().FuzzySearch("ough", contexts.Jobs, nil))
	return report{"prefix": exact.Matches[contexts.Jobs], "fuzzy": fuzzy.Matches[contexts.Jobs][0]}
}

func events(client *api.Client) report {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	topics := map[api.Topic][]string{api.TopicJob: {"announced"}, api.TopicAllocation: {"*"}}
	stream := must(client.EventStream().Stream(ctx, topics, 0, nil))
	must2(client.Jobs().Register(aJob("announced", 1), nil))
	registered, started := "", false
	for batch := range stream {
		check(batch.Err)
		for _, event := range batch.Events {
			switch event.Topic {
			case api.TopicJob:
				if event.Type == "JobRegistered" {
					registered = *must(event.Job()).ID
				}
			case api.TopicAllocation:
				one := must(event.Allocation())
				started = started || one.JobID == "announced" && one.ClientStatus == "running"
			}
		}
		if registered != "" && started {
			break
		}
	}
	return report{"registered": registered, "started": started}
}

func files(client *api.Client) report {
	must2(client.Jobs().Register(aJob("files", 1), nil))
	stub := untilRunning(client, "files", 1, 0)[0]
	one := must2(client.Allocations().Info(stub.ID, nil))
	path := "alloc/logs/t.stdout.0"
	cat := ""
	for cat == "" { // The task may have written nothing yet.
		if file, err := client.AllocFS().Cat(one, path, nil); err == nil {
			cat = readAll(file)
		} else if !strings.Contains(err.Error(), "404") {
			fail(err)
		}
	}
	cancel := make(chan struct{})
	defer close(cancel)
	frames, _ := client.AllocFS().Logs(one, false, "t", "stdout", "start", 0, cancel, nil)
	logs := ""
	for frame := range frames {
		logs += string(frame.Data)
	}
	var out strings.Builder
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	code := must(client.Allocations().Exec(ctx, one, "t", false, []string{"/bin/sh", "-c", "echo inside; exit 3"},
		strings.NewReader(""), &out, io.Discard, nil, nil))
	return report{
		"cat":       cat,
		"part":      readAll(must(client.AllocFS().ReadAt(one, path, 1, 3, nil))),
		"logs":      logs,
		"is folder": must2(client.AllocFS().Stat(one, "alloc", nil)).IsDir,
		"output":    out.String(),
		"exit code": code,
	}
}

func failures(client *api.Client) report {
	_, _, missing := client.Jobs().Info("nobody", nil)
	invalid := aJob("bad id", 1)
	_, _, refused := client.Jobs().Register(invalid, nil)
	_, _, disabled := client.ACLTokens().Bootstrap(nil)
	must2(client.Jobs().Register(aJob("guarded", 0), nil))
	_, _, outdated := client.Jobs().EnforceRegister(aJob("guarded", 1), 1, nil)
	return report{
		"missing":  statusOf(missing),
		"invalid":  strings.Contains(refused.Error(), "Job ID contains a space"),
		"disabled": statusOf(disabled),
		"outdated": strings.Contains(outdated.Error(), api.RegisterEnforceIndexErrPrefix),
	}
}

func services(client *api.Client) report {
	job := aJob("shop", 1)
	group := job.TaskGroups[0]
	group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}
	group.Services = []*api.Service{{Name: "shop", PortLabel: "http", Provider: "nomad", Tags: []string{"blue"}}}
	must2(client.Jobs().Register(job, nil))
	untilRunning(client, "shop", 1, 0)
	var found []*api.ServiceRegistration
	for len(found) == 0 {
		found = must2(client.Services().Get("shop", nil))
	}
	listed := must2(client.Services().List(nil))
	return report{"job": found[0].JobID, "tags": found[0].Tags, "port": found[0].Port > 0,
		"listed": listed[0].Services[0].ServiceName == "shop"}
}

func pages(client *api.Client) report {
	for _, name := range []string{"page-a", "page-b", "page-c"} {
		must2(client.Jobs().Register(aJob(name, 0), nil))
	}
	var sizes []int
	options := api.QueryOptions{Prefix: "page-", PerPage: 2}
	for {
		jobs, meta, err := client.Jobs().List(&options)
		check(err)
		sizes = append(sizes, len(jobs))
		if options.NextToken = meta.NextToken; options.NextToken == "" {
			break
		}
	}
	var filtered []string
	for _, one := range must2(client.Jobs().List(&api.QueryOptions{Filter: `ID == "page-b"`})) {
		filtered = append(filtered, one.ID)
	}
	return report{"sizes": sizes, "filtered": filtered}
}

func aJob(name string, count int) *api.Job {
	task := api.NewTask("t", "raw_exec")
	task.SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", "echo hello; sleep 600"})
	task.Require(&api.Resources{CPU: pointer(20), MemoryMB: pointer(20)})
	group := api.NewTaskGroup("g", count).AddTask(task)
	group.Update = &api.UpdateStrategy{MinHealthyTime: pointer(10 * time.Millisecond)}
	return api.NewServiceJob(name, name, "global", 50).AddDatacenter("*").AddTaskGroup(group)
}

// untilRunning waits with blocking queries until this many allocations of a job run, and returns them.
func untilRunning(client *api.Client, job string, count int, index uint64) []*api.AllocationListStub {
	for {
		all, meta, err := client.Jobs().Allocations(job, false, &api.QueryOptions{WaitIndex: index, WaitTime: limit})
		check(err)
		var running []*api.AllocationListStub
		for _, one := range all {
			if one.ClientStatus == "running" && one.DesiredStatus == "run" {
				running = append(running, one)
			}
		}
		if len(running) == count {
			return running
		}
		index = meta.LastIndex
	}
}

// untilQuiet reads the allocations of a job until a blocking query returns the index that it was given. It returns the
// metadata of that reply, and whether the query waited as long as it may.
func untilQuiet(client *api.Client, job string) (*api.QueryMeta, bool) {
	options := api.QueryOptions{WaitTime: 500 * time.Millisecond}
	for {
		began := time.Now()
		_, meta, err := client.Jobs().Allocations(job, false, &options)
		check(err)
		if meta.LastIndex == options.WaitIndex {
			return meta, time.Since(began) >= options.WaitTime
		}
		options.WaitIndex = meta.LastIndex
	}
}

// untilDeployed waits with blocking queries until the latest deployment of a job has ended, and returns it.
func untilDeployed(client *api.Client, job string) *api.Deployment {
	index := uint64(0)
	for {
		found, meta, err := client.Jobs().LatestDeployment(job, &api.QueryOptions{WaitIndex: index, WaitTime: limit})
		check(err)
		if found != nil && found.Status != "running" {
			return found
		}
		index = meta.LastIndex
	}
}

func statusOf(err error) any {
	var unexpected api.UnexpectedResponseError
	if errors.As(err, &unexpected) {
		return []any{unexpected.StatusCode(), strings.TrimSpace(unexpected.Body())}
	}
	return fmt.Sprint(err)
}

func readAll(from io.ReadCloser) string {
	defer from.Close()
	return string(must(io.ReadAll(from)))
}

func pointer[T any](value T) *T { return &value }

func must[T any](value T, err error) T {
	check(err)
	return value
}

// must2 drops the metadata that most calls return beside their value.
func must2[T, M any](value T, _ M, err error) T {
	check(err)
	return value
}

func check2[M any](_ M, err error) { check(err) }

func check(err error) {
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
