// Restate's worker, TypeScript SDK, as plain JavaScript: node restate_worker.js PORT (with NODE_PATH).

// Node 20 lacks this helper, which the SDK takes for granted.
Promise.withResolvers ??= () => {
  let resolve, reject;
  const promise = new Promise((yes, no) => { [resolve, reject] = [yes, no]; });
  return { promise, resolve, reject };
};

const restate = require("@restatedev/restate-sdk");

const NAP = 2000;
const smallStep = (number, place) => async () => ({ number, place, ok: true });

const orders = restate.service({
  name: "orders",
  handlers: {
    three_steps: async (context, number) => {
      let sum = 0;
      for (const place of [1, 2, 3]) sum += (await context.run(`step ${place}`, smallStep(number, place))).place;
      return sum;
    },
    sleeper: async (context, number) => {
      const called = Date.now();
      await context.sleep(NAP);
      const late = (Date.now() - called - NAP) / 1000;
      await context.run("note", smallStep(number, 1));
      return late;
    },
  },
});

const waiter = restate.workflow({
  name: "waiter",
  handlers: {
    run: async (context, number) => {
      const value = await context.promise("approval");
      await context.run("note", smallStep(number, 1));
      return { value };
    },
    approve: async (context, value) => { await context.promise("approval").resolve(value); },
  },
});

restate.serve({ services: [orders, waiter], port: Number(process.argv[2]) });
