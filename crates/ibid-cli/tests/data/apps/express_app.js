// The application around the page's middleware: a limiter that refuses the first request to a path, and handlers that count.
const express = require('express')
const { refuses, begins } = require('./ibid-outcome')

let executed = 0
const refused = new Set()
const limiter = (req, res, next) => {
  if (!req.path.startsWith('/limited') || refused.has(req.path)) return next()
  refused.add(req.path)
  res.status(503).send('too busy')
}

const app = express()
app.use(refuses)
app.use(limiter)
app.use(begins)
app.post(['/limited', '/payments'], (req, res) => {
  executed += 1
  res.status(201).send('paid')
})
app.post('/fails', (req, res) => {
  executed += 1
  res.status(503).send('after the work')
})
app.get('/executed', (req, res) => res.send(String(executed)))
app.listen(Number(process.env.PORT), '127.0.0.1')
